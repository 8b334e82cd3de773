"""What `benchmarks.peers` is made of: the workload, both sides of the comparison, what is measured, and the table.

The scripts that run inside a peer's own environment are in `benchmarks/peer-runs`, which is no package: they must not
import anything of ours.
"""
