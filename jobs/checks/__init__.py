"""Checks of hosts, folders and nodes; three uses: the pre-flight, `doctor` and `doctor --job`.

| module | content |
|---|---|
| `finding` | a finding, and the table rows that make findings |
| `host_facts` | facts about a host and the runs folder, read in a process that may hang |
| `host_checks` | rows about one host and folder |
"""
