"""Findings on clusters of several sites and versions: exactly the expected ones, and their remedies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from jobs.checks.finding import Finding, worst_first
from jobs.checks.host_facts import HostFacts
from jobs.schedulers.slurm import doctor
from jobs.schedulers.slurm.facts import ClusterFacts, Config
from jobs.schedulers.slurm.profile import GENERIC, Profile
from tests.support.cluster_sites import SITES, site_facts

HOST = HostFacts(
    "login1", 0.0, "/opt/python", "3.12.1", {}, 64 * 1024, None, 2**33, False,
    "/runs", "/runs", "nfs", "/", [], 2**40, {}, 0.0, 0.0,
)  # fmt: skip
OWN = {"partition": "batch", "gpu_type": "h100", "account": "physics"}


def profile(**keys: object) -> Profile:
    return Profile.model_validate({"name": "mine", **keys})


def found(facts: ClusterFacts, own: Profile = GENERIC, host: HostFacts = HOST) -> dict[str, Finding]:
    return {finding.key: finding for finding in doctor.cluster_findings(facts, own, host)}


def with_settings(facts: ClusterFacts, **settings: str) -> ClusterFacts:
    assert facts.config is not None
    lower = {name.lower(): value for name, value in settings.items()}
    return dataclasses.replace(facts, config=Config({**facts.config.values, **lower}, facts.config.cgroup))


def by_severity(findings: Mapping[str, Finding], severity: str) -> set[str]:
    return {key for key, finding in findings.items() if finding.severity == severity}


def test_findings_on_a_modern_site() -> None:
    findings = found(site_facts("h100"), profile(**OWN))
    assert by_severity(findings, "error") == set()
    assert by_severity(findings, "warning") == set()
    assert by_severity(findings, "note") == {
        "partitions.lost_nodes", "partitions.shared_nodes", "partitions.memory",
        "requeues.held", "isolation.jobsubmitplugins", "isolation.mpi",
    }  # fmt: skip


def test_findings_on_a_site_of_many_traps() -> None:
    findings = found(site_facts("gb200"))
    assert by_severity(findings, "error") == {"requeues.exit_codes"}
    assert by_severity(findings, "warning") == {
        "limits.wckey", "requeues.lost_node", "signals.kill_wait", "signals.preempt_cancel",
        "accounting.gpus", "isolation.locked_memory", "isolation.gpu_clock", "partitions.max_time",
    }  # fmt: skip
    assert {"limits.private_jobs", "signals.unkillable"} <= by_severity(findings, "note")


def test_findings_on_an_old_site_without_accounting() -> None:
    findings = found(site_facts("university"))
    assert by_severity(findings, "error") == set()
    assert by_severity(findings, "warning") == {
        "limits.job_age", "limits.job_count", "signals.proctrack", "accounting.none",
        "isolation.processors", "isolation.devices", "isolation.locked_memory",
    }  # fmt: skip
    assert "isolation.gpu_clock" not in findings, "high,memory=high changes nothing"


def test_findings_on_the_minicluster() -> None:
    findings = found(site_facts("minicluster", "root"))
    assert by_severity(findings, "error") == set()
    assert by_severity(findings, "warning") == {
        "isolation.processors", "isolation.devices", "isolation.locked_memory",
    }  # fmt: skip
    assert "isolation.srunportrange" not in findings, "0-0 is no range"


def test_a_partition_that_is_down_is_an_error_that_test_only_does_not_give() -> None:
    finding = found(site_facts("h100"), profile(partition="old"))["partitions.state"]
    assert (finding.severity, finding.evidence) == ("error", "old: State=DRAIN")


def test_a_profile_that_sets_the_limit_of_locked_memory() -> None:
    facts = with_settings(site_facts("h100"), PropagateResourceLimits="ALL", PropagateResourceLimitsExcept="")
    assert "isolation.locked_memory" in found(facts, profile(**OWN))
    own = profile(**OWN, setup="ulimit -l unlimited")
    assert "isolation.locked_memory" not in found(facts, own)


def test_mixed_and_sliced_gpus() -> None:
    findings = found(site_facts("h100"), profile(partition="mixed"))
    assert {"gpus.mixed", "gpus.mig", "partitions.oversubscribe"} <= by_severity(findings, "warning")
    assert findings["gpus.mixed"].evidence.startswith("gpu:a100:4,gpu:1g.10gb:7 on 1 nodes; ")
    whole = found(site_facts("h100"), profile(partition="mixed", gpu_type="a100"))
    assert not {"gpus.mixed", "gpus.mig"} & whole.keys()


def test_ports_that_srun_is_limited_to() -> None:
    facts = with_settings(site_facts("h100"), SrunPortRange="60001-63000")
    assert found(facts, profile(**OWN))["isolation.srunportrange"].severity == "note"


def test_gpus_of_a_cluster_without_cons_tres() -> None:
    assert found(site_facts("university"), profile(partition="gpu"))["gpus.option"].severity == "warning"
    assert "gpus.option" not in found(site_facts("university"), profile(partition="gpu", gpus="gres"))


@pytest.mark.parametrize(
    ("propagated", "kept", "limited"),
    [("ALL", "(null)", True), ("(null)", "MEMLOCK", False), ("NONE", "(null)", False),
     ("CPU,MEMLOCK", "(null)", True), ("(null)", "CPU", True)],
)  # fmt: skip
def test_the_limit_of_locked_memory_that_jobs_inherit(propagated: str, kept: str, limited: bool) -> None:
    facts = with_settings(
        site_facts("h100"), PropagateResourceLimits=propagated, PropagateResourceLimitsExcept=kept
    )
    own = profile(**OWN)
    assert ("isolation.locked_memory" in found(facts, own)) is limited
    unlimited = dataclasses.replace(HOST, locked_memory=None)
    assert "isolation.locked_memory" not in found(facts, own, unlimited)


def test_warnings_before_a_preemption() -> None:
    facts = site_facts("h100")
    assert "signals.no_grace" not in found(facts, profile(**OWN))
    abrupt = found(facts, profile(partition="old"))
    assert abrupt["signals.no_grace"].severity == "warning"
    off = with_settings(facts, PreemptType="preempt/none")
    assert "signals.no_grace" not in found(off, profile(partition="old"))


def test_a_silent_controller_is_the_only_finding() -> None:
    facts = ClusterFacts("ada", refusals={"config": "Unable to contact slurm controller"})
    (finding,) = doctor.cluster_findings(facts, GENERIC, HOST)
    assert (finding.severity, finding.key) == ("error", "controller.silent")
    assert finding.evidence == "Unable to contact slurm controller"
    assert [each.check for each in doctor.unchecked(facts, job=False)] == ["the cluster's configuration"]


def test_checks_that_could_not_be_made_are_named() -> None:
    facts = dataclasses.replace(site_facts("gb200"), nodes=None, refusals={"nodes": "sinfo: no answer"})
    named = {each.check: each.reason for each in doctor.unchecked(facts, job=False)}
    assert named["nodes and GPUs"] == "sinfo: no answer"
    assert "no job of ada ended" in named["accounting of a finished job"]
    assert "grace time of each QOS" in named
    assert any("--job" in reason for reason in named.values())
    assert not any("--job" in each.reason for each in doctor.unchecked(facts, job=True))


def test_a_clock_apart_and_an_accounting_that_is_silent() -> None:
    facts = dataclasses.replace(
        site_facts("h100"), clock_offset_s=-40.0, finished=None, refusals={"finished": "sacct: refused"}
    )
    findings = found(facts, profile(**OWN))
    assert "40 s behind" in findings["controller.clock"].problem
    assert findings["accounting.unreachable"].evidence == "sacct: refused"


@pytest.mark.parametrize("site", SITES)
def test_every_finding_has_one_line_of_each_and_the_worst_come_first(site: str) -> None:
    findings = worst_first(doctor.cluster_findings(site_facts(site), GENERIC, HOST))
    texts = [text for each in findings for text in (each.problem, each.remedy, each.evidence)]
    assert all(text and "\n" not in text and not text.endswith(".") for text in texts)
    assert len({each.key for each in findings}) == len(findings)
    order = ["error", "warning", "note"]
    ranks = [order.index(each.severity) for each in findings]
    assert ranks == sorted(ranks)
