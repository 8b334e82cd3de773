"""Consistency, measured: served feature rows are sampled to a log, recomputed from history, and compared."""
