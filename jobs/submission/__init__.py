"""Runs on the login node: from the runs that are wanted to submitted jobs."""
