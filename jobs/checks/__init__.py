"""Checks of hosts, folders and nodes; three uses: the pre-flight, `doctor` and `doctor --job`.

| module | content |
|---|---|
| `finding` | a finding, and the table rows that make findings |
| `host_facts`, `host_checks` | a host and the runs folder as it has it, for the doctor |
| `node_facts`, `gpu_health`, `link_rates` | a node of a job, for the pre-flight |
| `node_checks`, `ceiling` | rows about nodes, differences between them, and slow links |
| `verdict` | the record `preflight.json` |
"""
