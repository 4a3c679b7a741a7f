"""The network that a run used: counters of links, and NCCL's own log."""
