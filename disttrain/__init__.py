"""The trainer that runs on every rank, and the records it leaves behind.

`disttrain.config.sections`, `disttrain.records` and `disttrain.records.run_directory` import without torch: the launcher
(`jobs`), the sweep expander (`sweeps`) and the analysis (`analysis`) use only these.
"""

__version__ = "0.1.0"
