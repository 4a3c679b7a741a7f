"""Optimizers, precision, and running statistics of skipped steps."""
