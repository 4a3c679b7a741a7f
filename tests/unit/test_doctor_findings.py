"""Findings on clusters of several sites and versions: exactly the expected ones, and their remedies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from jobs.schedulers.doctor.diagnosis import Finding, worst_first
from jobs.schedulers.doctor.probe import HostFacts
from jobs.schedulers.slurm.doctor import cluster_checks, releases
from jobs.schedulers.slurm.doctor.cluster_facts import ClusterFacts, Config
from jobs.schedulers.slurm.site_profile import GENERIC, Profile
from jobs.schedulers.slurm.version import NEWEST
from tests.support.cluster_sites import SITES, site_facts

HOST = HostFacts(
    "login1", 0.0, "/opt/python", "3.12.1", (1, 1.0), None, {}, 64 * 1024, None, 2**33, None, 8, 0
)  # fmt: skip
OWN = {"partition": "batch", "gpu_type": "h100", "account": "physics"}


def profile(**keys: object) -> Profile:
    return Profile.model_validate({"name": "mine", **keys})


def found(facts: ClusterFacts, own: Profile = GENERIC, host: HostFacts = HOST) -> dict[str, Finding]:
    return {finding.key: finding for finding in cluster_checks.cluster_findings(facts, own, host)}


def with_settings(facts: ClusterFacts, **settings: str) -> ClusterFacts:
    assert facts.config is not None
    lower = {name.lower(): value for name, value in settings.items()}
    return dataclasses.replace(facts, config=Config({**facts.config.settings, **lower}, facts.config.cgroup))


def by_severity(findings: Mapping[str, Finding], severity: str) -> set[str]:
    return {key for key, finding in findings.items() if finding.severity == severity}


def test_findings_on_a_modern_site() -> None:
    findings = found(site_facts("h100"), profile(**OWN))
    assert by_severity(findings, "error") == set()
    assert by_severity(findings, "warning") == set()
    assert by_severity(findings, "note") == {
        "partitions.lost_nodes", "partitions.shared_nodes", "partitions.memory", "requeues.default",
        "requeues.held", "requeues.delay", "signals.children", "isolation.jobsubmitplugins", "isolation.mpi",
        "releases.grace_is_preemption", "releases.node_fail_exit_code", "releases.json_fields",
        "releases.gpus_per_node_variable",
    }  # fmt: skip


def test_findings_on_a_site_of_many_traps() -> None:
    findings = found(site_facts("gb200"))
    assert by_severity(findings, "error") == {"limits.association", "requeues.exit_codes"}
    assert by_severity(findings, "warning") == {
        "limits.wckey", "requeues.lost_node", "signals.kill_wait", "signals.preempt_cancel",
        "accounting.gpus", "isolation.locked_memory", "isolation.gpu_clock", "partitions.max_time",
    }  # fmt: skip
    assert {
        "limits.arrays", "limits.private_jobs", "limits.partition_limits", "signals.all_processes",
        "signals.unkillable", "accounting.comment", "releases.gpus_twice",
        "releases.cgroup_path", "releases.signal_exit_codes", "releases.topologies",
    } <= by_severity(findings, "note")  # fmt: skip
    assert "releases.expedited_requeue" not in findings, "it is enabled"
    assert "requeues.delay" not in findings, "requeue_delay=5"
    assert findings["requeues.exit_codes"].problem.count("1, 93") == 1
    assert findings["releases.step_order"].evidence == "Slurm 26.05.1, TopologyPlugin = topology/block"


def test_findings_on_an_old_site_without_accounting() -> None:
    findings = found(site_facts("university"))
    assert by_severity(findings, "error") == set()
    assert by_severity(findings, "warning") == {
        "gpus.none", "limits.job_age", "limits.job_count", "signals.proctrack", "accounting.none",
        "isolation.processors", "isolation.devices", "isolation.locked_memory",
    }  # fmt: skip
    assert {"releases.cpus_per_task", "releases.end_time"} <= by_severity(findings, "note")
    assert "set `partition` to one of gpu" in findings["gpus.none"].fix
    assert "isolation.gpu_clock" not in findings, "high,memory=high changes nothing"


def test_findings_on_the_minicluster() -> None:
    findings = found(site_facts("minicluster", "root"))
    assert by_severity(findings, "error") == set()
    assert by_severity(findings, "warning") == {
        "isolation.processors", "isolation.devices", "isolation.locked_memory",
    }  # fmt: skip
    assert "isolation.srunportrange" not in findings, "0-0 is no range"


@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        ({}, "partitions.none_chosen", "no default partition"),
        ({"partition": "bach"}, "partitions.unknown", "did you mean 'batch'?"),
        ({"partition": "old"}, "partitions.state", "starts no jobs"),
        ({"partition": "old"}, "partitions.no_nodes", "no node of partition old"),
        ({"partition": "mixed", "account": "guest"}, "partitions.account", "does not admit account guest"),
        ({"partition": "batch", "account": "phisics"}, "limits.account", "did you mean 'physics'?"),
        ({"partition": "batch", "qos": "hihg"}, "limits.qos", "did you mean 'high'?"),
        ({"partition": "batch", "gpu_type": "h200"}, "gpus.type", "no GPU of type 'h200'"),
        ({"partition": "batch", "srun": {"cpu-bind": "rank"}}, "releases.cpu_bind_rank", "--cpu-bind=rank"),
    ],
)
def test_a_profile_that_does_not_fit_is_an_error(keys: dict[str, object], key: str, words: str) -> None:
    finding = found(site_facts("h100"), profile(**keys))[key]
    assert finding.severity == "error"
    assert words in finding.problem


def test_an_account_that_is_not_listed_may_be_a_subaccount() -> None:
    finding = found(site_facts("h100"), profile(partition="mixed", account="chem"))["partitions.account"]
    assert finding.severity == "warning"
    assert finding.problem.startswith("AllowAccounts of partition mixed does not list account chem")


def test_a_profile_that_sets_the_limit_of_locked_memory() -> None:
    facts = with_settings(site_facts("h100"), PropagateResourceLimits="ALL", PropagateResourceLimitsExcept="")
    assert "isolation.locked_memory" in found(facts, profile(**OWN))
    own = profile(**OWN, setup="ulimit -l unlimited")
    assert "isolation.locked_memory" not in found(facts, own)


def test_the_setting_of_the_requeue_delay_depends_on_the_release() -> None:
    for version, setting in (("25.05.1", "AuthInfo=cred_expire"), ("25.11.0", "requeue_delay=5")):
        facts = with_settings(site_facts("h100"), SLURM_VERSION=version)
        assert setting in found(facts, profile(**OWN))["requeues.delay"].fix


def test_mixed_and_sliced_gpus() -> None:
    findings = found(site_facts("h100"), profile(partition="mixed"))
    assert {"gpus.mixed", "gpus.mig", "partitions.oversubscribe"} <= by_severity(findings, "warning")
    assert "1g.10gb, a100, v100" in findings["gpus.mixed"].fix
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


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("22.05.8", {"cpus_per_task", "end_time"}),
        ("23.02.7", {"cpus_per_task"}),
        ("23.11.4", set()),
        ("24.05.1", {"grace_is_preemption"}),
        ("24.11.0", {"grace_is_preemption", "node_fail_exit_code", "json_fields", "gpus_per_node_variable"}),
        ("21.08.5", {"old"}),
        ("26.11.0", {"new", "gpus_twice", "cgroup_path", "signal_exit_codes", "expedited_requeue",
                     "environment_hold", "grace_is_preemption", "node_fail_exit_code", "json_fields",
                     "gpus_per_node_variable"}),
    ],
)  # fmt: skip
def test_each_release_has_its_own_changes(version: str, expected: set[str]) -> None:
    facts = with_settings(site_facts("h100"), SLURM_VERSION=version, TopologyPlugin="topology/default")
    keys = {key.removeprefix("releases.") for key in found(facts, profile(**OWN)) if "releases." in key}
    assert keys == expected


def test_a_trap_of_select_linear() -> None:
    linear = with_settings(site_facts("h100"), SelectType="select/linear")
    assert "releases.linear_gpus_per_task" in found(linear, profile(**OWN))


def test_every_change_is_within_the_listed_releases() -> None:
    assert all(releases.OLDEST <= change.since <= NEWEST for change in releases.CHANGES)


def test_warnings_before_a_preemption() -> None:
    facts = site_facts("h100")
    own = profile(**OWN)
    assert not {"signals.no_grace", "signals.user_signal"} & found(facts, own).keys()
    assert "signals.user_signal" in found(with_settings(facts, PreemptParameters="(null)"), own)
    old = with_settings(facts, PreemptParameters="(null)", SlurmctldParameters="preempt_send_user_signal")
    assert "signals.user_signal" not in found(old, own), "its name before 23.02"
    abrupt = found(facts, profile(partition="old"))
    assert abrupt["signals.no_grace"].severity == "warning"
    off = with_settings(facts, PreemptType="preempt/none")
    assert "signals.no_grace" not in found(off, profile(partition="old"))


def test_a_silent_controller_is_the_only_finding() -> None:
    facts = ClusterFacts("ada", refusals={"config": "Unable to contact slurm controller"})
    (finding,) = cluster_checks.cluster_findings(facts, GENERIC, HOST)
    assert (finding.severity, finding.key) == ("error", "controller.silent")
    assert finding.evidence == "Unable to contact slurm controller"
    assert [each.check for each in cluster_checks.unchecked(facts, job=False)] == [
        "the cluster's configuration"
    ]


def test_checks_that_could_not_be_made_are_named() -> None:
    facts = dataclasses.replace(site_facts("gb200"), nodes=None, refusals={"nodes": "sinfo: no answer"})
    named = {each.check: each.reason for each in cluster_checks.unchecked(facts, job=False)}
    assert named["nodes and GPUs"] == "sinfo: no answer"
    assert "no job of ada ended" in named["accounting of a finished job"]
    assert "grace time of each QOS" in named
    assert any("--job" in reason for reason in named.values())
    assert not any("--job" in each.reason for each in cluster_checks.unchecked(facts, job=True))


def test_a_clock_apart_and_an_accounting_that_is_silent() -> None:
    facts = dataclasses.replace(
        site_facts("h100"), clock_offset_s=-40.0, finished=None, refusals={"finished": "sacct: refused"}
    )
    findings = found(facts, profile(**OWN))
    assert "40 s behind" in findings["controller.clock"].problem
    assert findings["accounting.unreachable"].evidence == "sacct: refused"


@pytest.mark.parametrize("site", SITES)
def test_every_finding_has_one_line_of_each_and_the_worst_come_first(site: str) -> None:
    findings = worst_first(cluster_checks.cluster_findings(site_facts(site), GENERIC, HOST))
    texts = [text for each in findings for text in (each.problem, each.fix, each.evidence)]
    assert all(text and "\n" not in text and not text.endswith(".") for text in texts)
    assert len({each.key for each in findings}) == len(findings)
    order = ["error", "warning", "note"]
    ranks = [order.index(each.severity) for each in findings]
    assert ranks == sorted(ranks)
