"""Stragglers: ranks, nodes and links that make the others wait.

| module | holds |
|---|---|
| `rank_steps` | seconds of one run as matrices of rank x step |
| `persistence` | loss split into a persistent and a transient part |
| `blame` | waiting charged to the late ranks, nodes and links, without remainder |
| `late_share` | test of how often a rank arrives last |
| `outliers` | ranks slower than the others in most of the run |
| `episodes` | ranks slower than the others for a while |
| `noise_floor` | waiting that measurement noise alone produces |
| `links` | slow links, from measured rates between nodes |
| `culprit` | the rank, node or link that costs most, with its size, or nobody |
| `heat_map` | lateness by rank and step, reduced to the size of a figure |

A step is synchronous: every rank works for its own seconds, then all wait for the last. Own seconds are
those of a step outside communication.
"""
