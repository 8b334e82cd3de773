"""Speed, measured as ratios in one run. Every script takes --quick and --json PATH and prints its headline last."""
