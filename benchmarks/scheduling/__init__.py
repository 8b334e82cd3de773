"""The parts of `benchmarks/scheduler.py`, each a question to the scheduler. Virtual time, but for its own cost."""
