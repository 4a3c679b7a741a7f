"""Apply a function to all runs of a table in parallel."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from os import sched_getaffinity
from typing import Any, TypeVar

import pandas as pd

T = TypeVar("T")

MANY_RECORDS = 200_000
"""Step records of all ranks from which processes are faster than threads: decoding holds the interpreter's
lock, and starting the processes takes about 0.1 s."""
_MOST_WORKERS = 8
_CHUNK = 8
"""Runs that a process reads at a time."""
_inherited: tuple[Callable[[pd.Series], Any], pd.DataFrame]


def map_runs(
    read: Callable[[pd.Series], T], runs: pd.DataFrame, *, small_results: bool = False
) -> Iterator[T]:
    """`read` of each row of a table of `load`, in order.

    Args:
        read: called in parallel threads, or in processes for many step records.
        runs: a table of `load`.
        small_results: the results are small beside the records, so that processes can return them.
    """
    workers = min(len(sched_getaffinity(0)), _MOST_WORKERS)
    if small_results and workers > 1 and _records(runs) >= MANY_RECORDS:
        yield from _in_processes(read, runs, workers)
        return
    with ThreadPoolExecutor(workers) as threads:
        tasks = (threads.submit(read, row) for _, row in runs.iterrows())
        yield from _in_order(tasks, 2 * workers)


def _records(runs: pd.DataFrame) -> float:
    return float((runs["world_size"] * runs["steps"]).fillna(0).sum())


def _in_processes(read: Callable[[pd.Series], T], runs: pd.DataFrame, workers: int) -> Iterator[T]:
    """Forked processes inherit the function and the table: nothing is pickled or imported again."""
    context = multiprocessing.get_context("fork")
    starts = range(0, len(runs), _CHUNK)
    with ProcessPoolExecutor(workers, context, _inherit, (read, runs)) as processes:
        for results in _in_order((processes.submit(_read_chunk, start) for start in starts), 2 * workers):
            yield from results


def _inherit(read: Callable[[pd.Series], Any], runs: pd.DataFrame) -> None:
    global _inherited
    _inherited = read, runs


def _read_chunk(start: int) -> list[Any]:
    read, runs = _inherited
    return [read(row) for _, row in runs.iloc[start : start + _CHUNK].iterrows()]


def _in_order(tasks: Iterator[Future[T]], waiting: int) -> Iterator[T]:
    """Results in the order of submission; at most `waiting` of them are in memory."""
    under_way: deque[Future[T]] = deque()
    for task in tasks:
        under_way.append(task)
        if len(under_way) > waiting:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()
