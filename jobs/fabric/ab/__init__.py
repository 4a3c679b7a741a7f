"""A/B comparison of environment variables: `submit.py fabric ab VAR=VALUE ...`.

| module | content |
|---|---|
| `settings` | `VAR=VALUE` arguments, and the environment with and without each |
| `suggestions` | the variables to compare where none is given |
| `decision` | sequential verdict on paired durations, with a confidence sequence |
| `experiment` | which arms are compared, in which order, until when |
| `arm_process` | the processes of one arm: start, blocks of steps, end |
| `__main__` | the program of each rank of the job |
"""
