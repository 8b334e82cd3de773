"""The feature store: declarations, the online store (Redis), the offline store (Parquet + DuckDB), and what joins them.

Imports only the root of core_engine.
"""
