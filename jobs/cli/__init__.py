"""The verbs of `submit.py`: `submit.py VERB` imports `jobs.cli.VERB` and calls `run(args) -> exit code`.

| module | shared by the verbs |
|---|---|
| `arguments`, `options`, `examples` | the parser of all verbs, shared arguments, examples for the help |
| `target` | the scheduler to submit to, by `--cluster` and the flags of a site profile |
| `submitting`, `action_table` | `sweep`, `run`, `resume`: submit runs, print the actions, wait |
| `more_repeats` | `--repeats auto`: the runs that a sweep lacks, given the present ones |
| `dry_run`, `dry_run_text`, `batch_scripts` | `--dry-run` and `--test-only` |
| `selection` | find the runs and sweeps that arguments name, read and select them |
| `trash` | the trash folder of `clean`: move there, restore, purge |
| `follow` | read states repeatedly and show them until all runs have ended |
| `status_table`, `run_table` | table of states; runs as CSV and Parquet |
| `log_tail` | lines of one log, or of all logs of an attempt by time |
| `web_page` | ports and SSH tunnels of `open` and `tensorboard` |
| `terminal`, `progress_bar` | colours and control characters; progress of long steps |
| `formatting` | aligned tables, durations, numbers |
| `command_output` | warnings, errors, and the document of `--json` |
"""
