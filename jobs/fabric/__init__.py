"""The network of a node: its description, the environment derived from it, and its proof in a run."""
