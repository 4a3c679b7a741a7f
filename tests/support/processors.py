"""Processors of machines for the tests of the binding."""

from __future__ import annotations

from jobs.fabric.plan_binding import Processor


def machine(packages: int, nodes: int, cores: int, threads: int) -> list[Processor]:
    """`nodes` NUMA nodes in each package, `cores` in each node; hardware threads numbered as Linux does."""
    total = packages * nodes * cores
    return [
        Processor(thread * total + core, core // (nodes * cores), core // cores, core % (nodes * cores))
        for thread in range(threads)
        for core in range(total)
    ]
