"""This machine as a scheduler: a first-in-first-out queue and a supervisor for each job."""
