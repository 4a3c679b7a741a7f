"""Checks of hosts, folders and nodes; three uses: the pre-flight, `doctor` and `doctor --job`.

| module | content |
|---|---|
| `finding` | a finding, and the table rows that make findings |
| `host_facts`, `host_checks` | a host and the runs folder as it has it, for the doctor |
| `node_facts`, `gpu_health` | a node of a job and the rates of its links, for the pre-flight |
| `node_checks`, `ceiling` | rows about nodes, their differences and slow links; `preflight.json` |
"""
