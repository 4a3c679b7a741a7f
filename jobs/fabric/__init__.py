"""The network of a node: detection, derived variables, lint, and A/B comparison."""
