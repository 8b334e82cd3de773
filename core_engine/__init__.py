"""Headrace's engine side: shared contracts at the root, and one folder per part.

Root modules (contracts, readers, settings, errors, metrics) are what every layer above may speak in; they import
neither torch nor any part. Parts: predictors (declaration, registry, ladder), llm (the engine), scoring (torch
scorers and ONNX students), pools (engine replicas), costs (usage spools; the ledger).
"""
