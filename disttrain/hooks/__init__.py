"""Hooks of the training loop, called between steps: telemetry, evaluation, stopping and checkpointing."""
