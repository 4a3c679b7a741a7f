"""A whole Slurm cluster on one machine: real munge, slurmdbd on MariaDB, slurmctld and N slurmd.

Everything of a cluster is a process in namespaces of its own below one first process, and a folder
`/run/disttrain-NAME`. So taking a cluster down is: kill that process, remove that folder.

| module | holds |
|---|---|
| `config` | from what is asked for to the text of Slurm's files; pure |
| `packages` | what has to be installed, and installing it |
| `places` | the folder, the processes and the names of a cluster |
| `network` | namespaces' addresses, links and their rate |
| `keeper` | the first process of the cluster, and of each node |
| `lifecycle` | up, down, status |
"""
