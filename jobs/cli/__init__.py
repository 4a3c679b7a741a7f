"""The verbs of `submit.py`: `submit.py VERB` imports `jobs.cli.VERB` and calls `run(args) -> exit code`.

| module | shared by the verbs |
|---|---|
| `arguments`, `argument_types`, `examples` | the arguments of all verbs, and examples for their help |
| `scheduler_arguments`, `result_arguments` | arguments on schedulers and on results |
| `target` | the scheduler to submit to, by `--cluster` and the flags of a site profile |
| `submitting`, `action_table` | `sweep`, `run`, `resume`: submit runs, print the actions, wait |
| `dry_run`, `dry_run_text`, `batch_scripts` | `--dry-run` and `--test-only` |
| `run_lookup` | find the runs and sweeps that arguments name |
| `trash` | the trash folder of `clean`: move there, restore, purge |
| `polling`, `follow` | read states repeatedly; show them until all runs have ended |
| `status_table`, `gpu_hours_table` | tables of states and of GPU-hours |
| `log_tail` | lines of one log, or of all logs of an attempt by time |
| `web_page` | ports and SSH tunnels of `open` and `tensorboard` |
| `terminal`, `progress_bar` | colours; progress of long steps |
| `formatting` | aligned tables, durations, numbers |
| `command_output` | warnings, errors, and the document of `--json` |
"""
