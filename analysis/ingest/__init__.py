"""Run directories from the step times of another program."""
