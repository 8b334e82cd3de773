"""Speed, measured as ratios in one run. Every script takes --quick and --json PATH and prints its headline last."""

from core_engine.llm.openmp import spin_briefly

spin_briefly()  # before any script imports torch, as the command line does
