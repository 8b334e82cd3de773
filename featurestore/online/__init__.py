"""The online store: feature rows in Redis, read in one round trip."""
