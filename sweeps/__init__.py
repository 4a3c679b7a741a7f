"""A sweep file and the command line are expanded into runs. Pure functions from data to data.

Runs on the login node; imports neither torch nor `jobs`.
"""
