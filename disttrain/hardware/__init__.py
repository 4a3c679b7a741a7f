"""GPUs and processes, sampled beside the steps."""
