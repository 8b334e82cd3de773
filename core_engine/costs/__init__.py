"""Costs: append-only spools of usage facts. Loader, ledger, price book and reports come with the cost issue."""
