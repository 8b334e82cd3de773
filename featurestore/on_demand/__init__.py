"""Features made of a request and of stored features: declared data, one set of pure functions online and offline."""
