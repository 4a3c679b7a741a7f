"""Submission on the login node: plan runs, choose an action for each, submit jobs."""
