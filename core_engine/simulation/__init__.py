"""The real scheduler on a virtual clock: traces in, latencies and throughput out. No torch, no socket, no waiting."""
