"""The trainer that runs on every rank, and the records of a run.

`disttrain.config`, `disttrain.records` and `disttrain.errors` import without torch. The launcher (`jobs`),
the sweep expander (`sweeps`) and the analysis (`analysis`) import only these parts.
"""

__version__ = "0.1.0"
