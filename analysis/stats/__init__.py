"""Statistics of runs: estimates with intervals, warm-up and stationarity, batch means, and verdicts."""
