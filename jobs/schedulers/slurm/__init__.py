"""Slurm as a cluster: what is submitted, how it is submitted, and what runs on each node."""
