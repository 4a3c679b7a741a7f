"""The verbs of `disttrain`: `disttrain VERB` imports `jobs.cli.VERB` and calls `run(args) -> exit code`.

| module | shared by the verbs |
|---|---|
| `main` | the command `disttrain`: parse, call the verb, print errors |
| `arguments`, `options` | the parser of all verbs with the examples of their help; shared arguments |
| `submitting` | `sweep`, `run`, `resume`: submit runs, print the actions, wait, call the hook at the end |
| `more_repeats` | `--repeats auto`: the runs that a sweep lacks, given the present ones |
| `preview` | `--dry-run`, `--test-only` and `--memory` |
| `selection` | find the runs, sweeps and schedulers that arguments name, read and select runs |
| `trash` | the trash folder of `clean`: move there, restore, purge |
| `follow` | read states repeatedly and show them until all runs have ended |
| `tables` | tables of runs: text, CSV and Parquet |
| `fabric_checks`, `bench` | `fabric explain` and `lint`; `bench comm` and `fabric ab` |
| `terminal`, `progress_bar` | colours and control characters; progress of long steps |
| `formatting` | aligned tables, durations, numbers |
| `command_output` | warnings, errors, and the document of `--json` |
"""
