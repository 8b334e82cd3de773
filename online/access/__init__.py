"""What a caller must show and keep to before a route sees its request: keys, quotas, sizes, and a pace."""
