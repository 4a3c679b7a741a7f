"""The communication benchmark: collectives over sizes, and DDP steps under forms of gradient communication.

`torchrun -m disttrain.comm_bench` measures on the ranks of one job; `disttrain bench comm` submits such jobs.
"""
