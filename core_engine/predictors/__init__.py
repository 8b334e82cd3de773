"""Predictors: the declaration, the registry of versions and aliases, and the one ladder that answers."""
