"""The configuration of a run: its typed tree, files and flags, batch arithmetic. Imports without torch."""
