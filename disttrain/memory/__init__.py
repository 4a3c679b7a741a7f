"""Memory of a rank: its limit, an estimate of its peak, and the batch size that fits."""
