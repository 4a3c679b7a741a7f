"""`sweep`: submit the missing runs of a sweep."""

from __future__ import annotations

import argparse

from jobs.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.common(parser, **options.SUBMISSION)
    text = "sweep file (sweeps/default.yaml; none for a script)"
    options.value(parser, "file", "FILE", text, nargs="?")
    options.value(parser, "--nodes", "N", "node counts: an axis", nargs="+")
    options.value(parser, "--gpus-per-node", "N", "ranks on each node: an axis", nargs="+")
    text = "numbers of GPUs: an axis that fills a node before the next (--gpus-per-node, or the site profile)"
    options.value(parser, "--gpus", "N", text, nargs="+")
    text = "config values; commas separate the values of an axis, [a, b] is one list value"
    options.words(parser, "--set", "KEY=VALUE[,VALUE...]", text)
    text = "repeats of each combination; auto:2%: until each throughput is within 2 %, 10 at most"
    options.value(parser, "--repeats", "N|auto:P%[:N]", text.replace("%", "%%"))
    text = "batch size that is constant over ranks: the local or the global one"
    options.value(parser, "--scaling", "weak|strong", text)
    options.value(parser, "--grid", "NAME", "grids of the file to expand (all)", nargs="+", default=[])
    options.submission(parser)
    parser.add_argument("--report-job", type=int, help=argparse.SUPPRESS)  # that repeats this command


def run(args: argparse.Namespace) -> int:
    import functools

    from jobs.cli import selection, submitting
    from jobs.cli.progress_bar import progress
    from jobs.submission.plan import DEFAULT, sweep_plan

    if not (args.file or args.command):
        args.file = str(DEFAULT)
    unknown = args.gpus and not args.gpus_per_node
    site = selection.described_scheduler(args, ()).profile(None) if unknown else None
    of_node = site.gpus_per_node if site else None
    plan = functools.partial(sweep_plan, progress=progress, gpus_of_node=of_node)
    return submitting.submit_plan(args, plan)
