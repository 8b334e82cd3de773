"""The quality gate: what a smaller precision changes, judged on the tail and against fp32 of the same weights."""
