"""From one sweep file and the command line to the runs they mean: data in, data out.

Runs on the login node; imports neither torch nor `jobs`.
"""
