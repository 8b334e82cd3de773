"""Tabular scoring: row encoding, torch scorers for the engine, ONNX students and priors for the caller."""
