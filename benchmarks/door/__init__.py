"""The online door under load: a stand to measure on, the load generator beside it, and a bare service to compare with.

`benchmarks/online.py` runs it all.
"""
