"""The feature store: view definitions, the online store (Redis), the offline store (Parquet + DuckDB).

Imports only the root of core_engine.
"""
