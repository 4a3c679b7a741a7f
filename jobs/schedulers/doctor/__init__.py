"""Checks of `submit.py doctor` that every scheduler shares: this machine, the runs folder, one node."""
