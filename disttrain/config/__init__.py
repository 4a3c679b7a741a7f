"""Configuration of a run: typed sections, files and flags, batch arithmetic. Imports without torch."""
