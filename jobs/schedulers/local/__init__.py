"""The scheduler for a machine without Slurm: a first-in-first-out queue and a supervisor for each job."""
