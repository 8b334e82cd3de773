"""Who asks, and how much of this platform may be theirs: API keys, tenants and their quotas."""
