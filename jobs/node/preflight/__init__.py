"""Pre-flight: checks of all nodes of an attempt before its ranks start (docs/preflight.md)."""
