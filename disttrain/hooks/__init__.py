"""Called by the training loop between steps: evaluation, stopping and checkpointing."""
