"""Arms: sets of ranks with different environments that take turns within one job (`disttrain fabric ab`).

| module | content |
|---|---|
| `plan` | `VAR=VALUE` arguments, the variables to compare without any, the environment of an arm |
| `processes` | the processes of the arms on one rank: start, blocks of steps, end |
| `experiment` | which arms are compared, in which order, until when |
| `decision` | sequential verdict on paired durations, with a confidence sequence |
| `result` | the table, and the variables to keep |
| `__main__` | the program of each rank of the job |
"""
