"""Where the step time goes: the clock of the step's parts, step records, the summary, and sinks."""
