"""The offline store: history in Parquet, joined as it was known at each row's instant."""
