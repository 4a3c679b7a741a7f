"""Read run directories: a table of runs, and frames of steps, collectives and hardware samples."""
