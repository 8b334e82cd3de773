"""The parts of `benchmarks.featurestore`: reading online, joining history, and updating windows.

Each part is a module with one function, `measure(quick)`: its rows, which have the same columns, and its share of the
headline.
"""
