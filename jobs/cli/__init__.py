"""The verbs of `submit.py`, one module each with `run(args) -> exit code`, and what they share.

Imported only when their verb is asked for.
"""
