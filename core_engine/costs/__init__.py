"""Costs: usage facts and their spools, the ledger that they are loaded into, prices, and a report that must add up."""
