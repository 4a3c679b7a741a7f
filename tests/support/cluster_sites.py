"""Clusters of the doctor's tests, from the outputs in `tests/support/clusters/`."""

from __future__ import annotations

from pathlib import Path

from jobs.schedulers.slurm import facts
from jobs.schedulers.slurm.facts import ClusterFacts
from tests.support.commands import Commands

FOLDER = Path(__file__).parent / "clusters"
SITES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def text(site: str, part: str) -> str | None:
    path = FOLDER / site / f"{part}.txt"
    return path.read_text() if path.exists() else None


def site_facts(site: str, user: str = "ada") -> ClusterFacts:
    """Facts as `read_cluster` reads them, for any user."""
    finished = text(site, "sacct")
    return ClusterFacts(
        user,
        facts.parse_config(text(site, "config") or ""),
        facts.parse_partitions(text(site, "partitions") or ""),
        facts.parse_nodes(text(site, "nodes") or ""),
        facts.parse_queue(text(site, "queue") or ""),
        facts.parse_accounts(text(site, "assoc") or ""),
        None if finished is None else facts.parse_finished(finished),
        clock_offset_s=0.0,
    )


def install(commands: Commands, site: str) -> None:
    """Stand-ins of Slurm's commands that print a site's outputs."""
    folder = FOLDER / site
    commands.add(
        "scontrol",
        f'case "$*" in *config) cat "{folder}/config.txt";; *partition*) cat "{folder}/partitions.txt";;'
        ' *) echo "unexpected: $*" >&2; exit 1;; esac',
    )
    commands.add("sinfo", f'cat "{folder}/nodes.txt"')
    commands.add("squeue", f'cat "{folder}/queue.txt"')
    commands.add("sacctmgr", f'cat "{folder}/assoc.txt"')
    commands.add("sacct", f'cat "{folder}/sacct.txt"')
    commands.add("sdiag", 'echo "sdiag output at today ($(date +%s))"')
    commands.add("sbatch", "exit 1")
