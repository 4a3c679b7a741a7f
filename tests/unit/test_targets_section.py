"""The `targets` section of a sweep file: its forms, its mistakes, and `sweep.json`."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttrain.config.parsing import check, load
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json
from disttrain.records.planned import SweepRecord, Target
from jobs.submission.plan import write_sweep_record
from sweeps.expand import SweepPlan, expand
from sweeps.overrides import parse_set

FILE = """\
model: {kind: mlp}
data: {kind: digits}
train:
  steps: 10
  local_batch_size: 8
sweep:
  axes:
    resources.nodes: [1, 2]
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def planned(targets: str, *sets: str) -> SweepPlan:
    Path("sweep.yaml").write_text(FILE + targets)
    return expand(load("sweep.yaml"), [parse_set(text) for text in sets], name="s")


def test_one_mapping_sets_targets_at_one_size() -> None:
    plan = planned("targets:\n  at: 2\n  communication_share: 0.15\n  efficiency: 0.85\n")
    assert plan.targets == (
        Target(metric="efficiency", value=0.85, at=2),
        Target(metric="communication_share", value=0.15, at=2),
    )


def test_a_list_sets_targets_at_several_sizes_and_a_missing_size_is_the_largest() -> None:
    plan = planned("targets:\n- {at: 2 nodes, throughput: 800}\n- {mfu: 0.4, gpu_utilization: 0.9}\n")
    assert plan.targets == (
        Target(metric="throughput", value=800.0, at="2 nodes"),
        Target(metric="gpu_utilization", value=0.9),
        Target(metric="mfu", value=0.4),
    )


def test_the_smallest_size_and_a_whole_share_are_allowed() -> None:
    assert planned("targets: {at: 1, mfu: 1}\n").targets == (Target(metric="mfu", value=1.0, at=1),)


def test_no_section_is_no_statement_and_an_empty_one_is_no_targets() -> None:
    assert planned("").targets is None
    assert planned("targets:\n").targets == ()


def test_targets_are_no_part_of_the_config_and_of_its_key() -> None:
    assert [run.config_key for run in planned("targets: {efficiency: 0.9}\n").runs] == [
        run.config_key for run in planned("").runs
    ]
    assert planned("targets: {efficiency: 0.9}\n").base == planned("").base
    check(load("sweep.yaml"))  # the trainer reads a sweep file too


def test_a_target_can_be_set_on_the_command_line() -> None:
    plan = planned("targets: {efficiency: 0.9}\n", "targets.efficiency=0.8")
    assert plan.targets == (Target(metric="efficiency", value=0.8),)
    with pytest.raises(ConfigError, match=r"targets.efficiency cannot be an axis"):
        planned("", "targets.efficiency=0.8,0.9")


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            "targets:\n  eficiency: 0.9\n",
            "sweep.yaml:10: unknown key 'targets.eficiency'; did you mean 'efficiency'?",
        ),
        ("targets:\n  mfu: true\n", "sweep.yaml:10: targets.mfu=True must be a share"),
        ("targets:\n  mfu: 0\n", "sweep.yaml:10: targets.mfu=0 must be a share"),
        ("targets:\n  mfu: 1.01\n", "sweep.yaml:10: targets.mfu=1.01 must be a share"),
        ("targets:\n  throughput: .inf\n", "sweep.yaml:10: targets.throughput=inf must be a number"),
        (
            "targets:\n  at: true\n  mfu: 0.3\n",
            "sweep.yaml:10: targets.at=True must be a size: 16 gpus, 2 nodes or 2x8",
        ),
        ("targets:\n  throughput: 0\n", "sweep.yaml:10: targets.throughput=0 must be a number above 0"),
        (
            "targets:\n  at: 0\n  mfu: 0.3\n",
            "sweep.yaml:10: targets.at=0 must be a size: 16 gpus, 2 nodes or 2x8",
        ),
        ("targets:\n  at: 4\n", "sweep.yaml:9: targets={'at': 4} sets no target; allowed: efficiency,"),
        ("targets: 0.9\n", "sweep.yaml:9: targets=0.9 must be a mapping; keys: efficiency,"),
        ("targets: [{mfu: 0.3}, {mfu: 3}]\n", "sweep.yaml:9: targets.1.mfu=3 must be a share"),
    ],
)
def test_mistakes_name_their_line(targets: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        planned(targets)
    assert str(raised.value).startswith(message)


def test_sweep_json_has_the_targets_of_the_latest_file_with_a_section() -> None:
    root = Path("runs")
    (root / "s").mkdir(parents=True)

    def recorded(targets: str) -> list[float]:
        write_sweep_record(root, planned(targets))
        record = SweepRecord.model_validate(read_json(root / "s" / "sweep.json"))
        return [target.value for target in record.targets]

    assert recorded("") == []
    assert recorded("targets: {efficiency: 0.9}\n") == [0.9]
    assert recorded("") == [0.9]
    assert recorded("targets: {efficiency: 0.8}\n") == [0.8]
    assert recorded("targets: []\n") == []
