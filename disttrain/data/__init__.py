"""Data kinds: one module each, with a `build` that returns a `Source`."""
