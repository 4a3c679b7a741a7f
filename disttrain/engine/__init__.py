"""The training engine: a step, the run around it, and telemetry for a loop of one's own."""
