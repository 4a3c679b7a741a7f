"""Findings on clusters of several sites and versions: exactly the expected ones, and checks not made."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from jobs.checks.finding import Finding, worst_first
from jobs.checks.host_facts import HostFacts
from jobs.schedulers.slurm import doctor, facts
from jobs.schedulers.slurm.facts import ClusterFacts, Config, QueuedJob
from jobs.schedulers.slurm.profile import Profile
from tests.support.cluster_sites import SITES, site_facts
from tests.support.golden import golden

HOST = HostFacts(
    "login1", 0.0, "/opt/python", "3.12.1", {}, 64 * 1024, None, 2**33, False,
    "/runs", "/runs", "nfs", "/", [], 2**40, {}, 0.0, 0.0,
)  # fmt: skip
OWN = {"partition": "batch", "gpu_type": "h100", "account": "physics"}
LOCKED = "isolation.locked_memory"


def found(
    cluster: ClusterFacts, profile: Mapping[str, Any] = OWN, host: HostFacts | None = HOST, **settings: Any
) -> dict[str, Finding]:
    """Findings by key, with these settings laid over those of the cluster."""
    assert cluster.config is not None
    values = {**cluster.config.values, **{name.lower(): value for name, value in settings.items()}}
    cluster = dataclasses.replace(cluster, config=Config(values, cluster.config.cgroup))
    own = Profile.model_validate({"name": "mine", **profile})
    return {finding.key: finding for finding in doctor.cluster_findings(cluster, own, host)}


H100 = site_facts("h100")


CASES = """\
h100 partition=batch gpu_type=h100 account=physics
h100 partition=old
h100 partition=old PreemptType:preempt/none
h100 partition=mixed
h100 partition=mixed gpu_type=a100
h100 partition=batch,mixed
h100 partition=batch memory=0
h100 partition=batch exclusive=true
h100 partition=batch SrunPortRange:60001-63000
h100 partition=batch KillWait:14
h100 partition=batch KillWait:15
h100 partition=batch RequeueExit:90-93
h100 partition=batch RequeueExit:94-99
gb200
gb200 wckey=x
university
university partition=gpu
university partition=gpu gpus=gres
minicluster
"""
"""A site, keys of the site profile, and settings in place of those of the site."""


def test_the_findings_of_each_site_profile_and_setting():
    lines = []
    for case in CASES.splitlines():
        site, *words = case.split()
        profile = dict(word.split("=") for word in words if "=" in word)
        settings: dict[str, Any] = dict(word.split(":") for word in words if ":" in word)
        findings = found(site_facts(site, "root" if site == "minicluster" else "ada"), profile, **settings)
        lines += [case, *(f"  {each.severity} {key}" for key, each in sorted(findings.items()))]
    golden("doctor-findings.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("propagated", "kept", "limited"),
    [("ALL", "(null)", True), ("(null)", "MEMLOCK", False), ("NONE", "(null)", False),
     ("CPU,MEMLOCK", "(null)", True), ("(null)", "CPU", True)],
)  # fmt: skip
def test_the_limit_of_locked_memory_that_jobs_inherit(propagated, kept, limited):
    settings: dict[str, Any] = {"PropagateResourceLimits": propagated, "PropagateResourceLimitsExcept": kept}
    assert (LOCKED in found(H100, **settings)) is limited
    for profile, host in (
        (OWN, dataclasses.replace(HOST, locked_memory=None)),
        (OWN, None),
        (OWN | {"setup": "ulimit -l unlimited"}, HOST),
    ):
        assert LOCKED not in found(H100, profile, host, **settings)


@pytest.mark.parametrize(("jobs", "full"), [(90, False), (91, True)])
def test_the_queue_is_nearly_full_above_nine_tenths(jobs, full):
    queue = [QueuedJob("batch", None, "ada", None, 0, 1)] * jobs
    findings = found(dataclasses.replace(H100, queue=queue), MaxJobCount="100")
    assert ("limits.job_count" in findings) is full


@pytest.mark.parametrize(
    ("offset_s", "text"), [(-40.0, "40 s behind"), (40.0, "40 s ahead"), (5.0, None), (None, None)]
)
def test_a_clock_apart(offset_s, text):
    finding = found(dataclasses.replace(H100, clock_offset_s=offset_s)).get("controller.clock")
    assert (finding is None) == (text is None)
    assert text is None or (finding and text in finding.problem)


@pytest.mark.parametrize(("controller_s", "offset_s"), [(0, 0), (-0.9, 0), (-41, 40), (41, -41)])
def test_the_offset_of_this_clock_within_the_resolution_of_the_controller(
    commands, monkeypatch, controller_s, offset_s
):
    monkeypatch.setattr(facts.time, "time", lambda: 1000.0)
    monkeypatch.setattr(facts.commands, "controller_time", lambda: 1000.0 + controller_s)
    for name in ("scontrol", "sinfo", "squeue"):
        commands.add(name, "echo 'ClusterName = x'")
    assert facts.read_cluster().clock_offset_s == pytest.approx(offset_s, abs=0.01)


def test_a_silent_controller_is_the_only_finding():
    silent = ClusterFacts("ada", refusals={"config": "Unable to contact slurm controller"})
    (finding,) = doctor.cluster_findings(silent, Profile(name="x"), HOST)
    assert (finding.severity, finding.key) == ("error", "controller.silent")
    assert finding.evidence == "Unable to contact slurm controller"
    assert [each.check for each in doctor.unchecked(silent, job=False)] == ["the cluster's configuration"]


def test_checks_that_could_not_be_made_are_named():
    refusals = {"nodes": "sinfo: no answer", "finished": "sacct: refused"}
    partial = dataclasses.replace(site_facts("gb200"), nodes=None, refusals=refusals)
    reasons = {each.check: each.reason for each in doctor.unchecked(partial, job=False)}
    assert reasons["nodes and GPUs"] == "sinfo: no answer"
    assert {"accounting of a finished job", "grace time of each QOS"} <= reasons.keys()
    assert any("--job" in reason for reason in reasons.values())
    assert not any("--job" in each.reason for each in doctor.unchecked(partial, job=True))
    assert found(partial, {})["accounting.unreachable"].evidence == "sacct: refused"
    unknown = doctor.unchecked(dataclasses.replace(partial, finished=None), job=False)
    assert "accounting of a finished job" not in [each.check for each in unknown], (
        "none is known to be missing"
    )


@pytest.mark.parametrize("site", SITES)
def test_every_finding_has_one_line_of_each_and_the_worst_come_first(site):
    findings = worst_first([*found(site_facts(site), {}).values()])
    texts = [text for each in findings for text in (each.problem, each.remedy, each.evidence)]
    assert all(text and "\n" not in text and not text.endswith(".") for text in texts)
    ranks = [["error", "warning", "note"].index(each.severity) for each in findings]
    assert ranks == sorted(ranks)
