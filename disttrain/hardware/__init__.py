"""GPUs, processes and links of a node, sampled beside its work. Imports no torch."""
