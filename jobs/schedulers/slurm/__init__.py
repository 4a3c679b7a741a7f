"""The Slurm scheduler: batch scripts, site profiles, queries, and the task of each node."""
