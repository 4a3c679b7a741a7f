"""`submit.py doctor` on Slurm: `collect` reads, `checks` find, `draft` writes a site profile.

| module | content |
|---|---|
| `facts` | typed facts about a cluster |
| `parsing` | from the output of Slurm's commands to facts; pure |
| `collect` | the commands, each with a time limit and allowed to fail |
| `signals`, `requeues`, `limits`, `partitions`, `accounting`, `isolation`, `releases` | findings; pure |
| `checks` | the findings of all families, and the checks that could not be made |
| `draft` | the text of a site profile |
| `node_probe` | a short job that examines a node |
| `examination` | the doctor |
"""
