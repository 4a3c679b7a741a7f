"""Runs on the login node: finds out what happened to runs."""
