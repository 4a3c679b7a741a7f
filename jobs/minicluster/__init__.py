"""A real Slurm cluster on one machine: munge, slurmdbd on MariaDB, slurmctld and N slurmd.

Every process of a cluster runs in namespaces below one namespace init. Every file lies in
`/run/disttrain-NAME`. `cluster down` kills that process and removes that folder.

| module | holds |
|---|---|
| `config` | the requested cluster, and the text of Slurm's configuration files; pure functions |
| `packages` | the required Debian packages, and their installation |
| `discovery` | folder, names and processes of a cluster, found from `/run` and `/proc` |
| `network` | bridge, links, addresses and link rates |
| `namespace_init` | process 1 of the head and of each node |
| `init_protocol` | the lines that a namespace init exchanges with its parent process |
| `services` | munged, MariaDB and the Slurm daemons: start, and wait until they accept connections |
| `lifecycle` | `up`, `down`, `find_cluster`, `status_fields` |
"""
