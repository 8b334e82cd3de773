"""Revisions, oldest first; one that was released never changes."""
