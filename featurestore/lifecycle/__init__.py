"""The life of a feature view: what would change, how far it is online, its deletion, and whether all of it is well."""
