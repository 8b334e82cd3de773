"""Runnable examples. `flights` is the one that `make demo` and the README use."""
