"""The job that writes a sweep's report once its runs have ended, so that people find it without asking.

    runs/<sweep>/.report/submissions/    its journal: as a run's own (`jobs.core.journal`), but never claimed

A sweep has one such job at a time. When more runs are submitted another takes its place, which waits for
those too. It does what `submit.py report` does: twice, or too early, does no harm.

Run as `python -m jobs.submission.report_job JOURNAL --submission N --ticket T COMMAND...` it waits for its turn in the
queue of this machine.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from disttrain.records.json_files import read_json_or_none
from disttrain.records.run_directory import RunDir
from jobs.core import code_snapshot, processes
from jobs.core import journal as ledger
from jobs.core.processes import host
from jobs.schedulers.base import Scheduler, Submission, SubmitError, Unreachable
from jobs.schedulers.local import fifo_queue
from jobs.status.refresh import refresh
from jobs.status.run_state import RunState, read_runs
from jobs.submission.submit import handle


def journal_of(root: Path, sweep: str) -> RunDir:
    return RunDir(root / sweep / ".report")


def ensure(root: Path, sweep: str, cluster: Scheduler, *, anew: bool) -> str | None:
    """See to it that a job writes the report when the runs now on their way are over; its id, None where
    there is nothing to wait for. `anew`: runs were submitted that the job there is does not know of.

    Belongs inside `sweep_lock`. Raises `SubmitError`.
    """
    states = refresh(read_runs(root, sweep), cluster, receipts=True)
    awaited = [state for state in states if state.active and state.cluster == cluster.name and state.job_id]
    if not awaited:
        return None
    journal = journal_of(root, sweep)
    there = _alive(journal, cluster)
    if there and not anew:
        return there[max(there)]
    job_id = _submit(journal, awaited, cluster, [sweep, "--runs", str(root.absolute())])
    cluster.cancel(list(there.values()))
    for number in there:
        ledger.revoke(journal, number, "cancelled", "another one waits for more runs")
    return job_id


def _submit(journal: RunDir, awaited: Sequence[RunState], cluster: Scheduler, arguments: list[str]) -> str:
    intent = {
        "cluster": cluster.name,
        "host": host(),
        "handle": handle(journal, ledger.next_submission(journal)),
        "index": None,
        "after": [state.job_id for state in awaited],
    }
    number = ledger.write_intent(journal, intent)
    last = awaited[-1].run
    record = read_json_or_none(last.run_json) or {}
    try:
        job_id = cluster.submit_after(
            Submission(journal, number),
            [str(code_snapshot.code_of_run(last, record) / "submit.py"), "report", *arguments],
            [str(state.job_id) for state in awaited],
            record.get("profile"),
        )
    except Unreachable:
        raise
    except SubmitError as error:
        ledger.revoke(journal, number, "launch_failed", str(error))
        raise
    ledger.write_receipt(journal, number, job_id)
    return job_id


def _alive(journal: RunDir, cluster: Scheduler) -> dict[int, str]:
    """The report jobs that wait or run, by the numbers of their submissions; those over are settled."""
    found: dict[int, str] = {}
    lost = []
    for entry in ledger.entries(journal):
        if "claim" in (entry.parts or ()) or (entry.read("intent") or {}).get("cluster") != cluster.name:
            continue
        receipt = entry.read("receipt")
        if receipt is None:
            lost.append(entry.number)
        else:
            found[entry.number] = receipt["job_id"]
    if lost:
        jobs = cluster.find([Submission(journal, number) for number in lost])
        for number, job_id in zip(lost, jobs, strict=True):
            if job_id is None:
                ledger.revoke(journal, number, "lost", "no job was found for it")
            else:
                ledger.write_receipt(journal, number, job_id)
                found[number] = job_id
    jobs_now = cluster.poll(list(found.values()))
    over = {number for number, job_id in found.items() if jobs_now[job_id].status in ("ended", "not_found")}
    for number in over:
        ledger.revoke(journal, number, "lost", "it is over")
    return {number: job_id for number, job_id in found.items() if number not in over}


def main(argv: list[str] | None = None) -> int:
    """Write the report when the local runs submitted before have ended."""
    parser = argparse.ArgumentParser(prog="python -m jobs.submission.report_job", description=main.__doc__)
    parser.add_argument("journal", type=Path)
    parser.add_argument("--submission", type=int, required=True)
    parser.add_argument("--ticket", type=int, required=True)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(argv)
    journal = RunDir(given.journal)
    with fifo_queue.hold(given.ticket) as place:
        if place is None:
            return 0
        ledger.write_holder(journal, given.submission, processes.current_process().as_dict())
        place.wait_turn()
        if ledger.entry(journal, given.submission).read("claim") is not None:
            return 0  # another one has taken its place
        return subprocess.run([sys.executable, *given.command], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
