"""Speculative decoding: several tokens of a sequence in one step, the same tokens as without it."""
