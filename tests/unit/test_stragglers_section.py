"""Section of stragglers and its sentence on the first screen, for runs with known delays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from analysis.efficiency import scaling_curves
from analysis.read.frames import load
from analysis.report import first_screen, straggler_text
from analysis.report.sections import stragglers
from analysis.results.phases import PERSISTENT, TRANSIENT
from analysis.results.waterfall import waterfalls
from analysis.study import Study
from analysis.units import percent
from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.links import LinkRates, NodePairRate
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES
from tests.support.fake_runs import fake_run
from tests.support.straggler_records import TRANSFER_S, delays, generate

STEPS = 110
HOSTS = ["c00", "c01", "c02", "c03"]
FIELDS = ("step", "step_s", *PHASES, "comm_exposed_s")


def write_run(
    path: Path,
    added_s: np.ndarray,
    repeat: int = 0,
    transfer_s: float = TRANSFER_S,
    hosts: Sequence[str] = HOSTS,
    *,
    noise_s: float = 0.0,
    with_means: bool = False,
) -> RunDir:
    """A run of four ranks with these delays; `with_means`: its metrics have the means of its step records."""
    run = fake_run(path, nodes=4, hosts=hosts, steps=STEPS, repeat=repeat)
    write_json(run.attempt(0).record, read_json(run.attempt(0).record) | {"cluster": "slurm"})
    rows = generate(added_s, transfer_s=transfer_s, noise_s=noise_s, seed=repeat)
    for rank, own in rows.groupby("rank"):
        lines = [
            {**dict(zip(FIELDS, values, strict=True)), "start_s": 0.0, "samples": 8, "loss": 1.0, "lr": 0.1}
            for values in own[list(FIELDS)].to_numpy().tolist()
        ]
        for line in lines:
            line["step"] = int(line["step"])
        write_text(run.attempt(0).steps(int(rank)), "".join(f"{json.dumps(line)}\n" for line in lines))
    if with_means:
        measured, metrics = rows[rows["step"] > 10], read_json(run.metrics)
        step_s = float(measured["step_s"].mean())
        rate = {"samples_per_s": metrics["global_batch_size"] / step_s}
        rate |= {"measured_s": step_s * metrics["measured_steps"]}
        composition = {name: float(measured[name].mean()) for name in PHASES}
        write_json(run.metrics, metrics | rate | {"composition": composition})
    return run


def study_of(sweep: Path) -> Study:
    runs = load([sweep])
    return Study(runs, scaling_curves(runs))


def sentence_of(study: Study) -> str:
    section = stragglers.build(study)
    assert section is not None
    return section.conclusion


def test_a_slow_rank_is_named_on_the_first_screen_with_size_and_repeats(tmp_path):
    for repeat in range(2):
        added = delays(4, STEPS, slow=[2], slow_s=0.05, jitter_s=0.003, seed=repeat)
        write_run(tmp_path / "sweep" / f"n4-r{repeat}", added, repeat)
    study = study_of(tmp_path / "sweep")
    text = sentence_of(study)
    assert text.startswith("On 4 nodes: Rank 2 on c02 is slow: compute takes ")
    assert "throughout the run" in text
    assert "Found in 2 of 2 repeats." in text
    section = stragglers.build(study)
    assert section is not None
    assert text in [each.text for each in first_screen.answers(study, [section])]
    named, waiting, blame = section.tables
    assert [row[1] for row in named.rows] == ["rank 2 on c02"] * 2
    for row in named.rows:
        excess, cost, share, _, steps = row[4:9]
        assert all(each.basis == "within run" and each.low < each.value for each in (excess, cost, share))
        assert steps == STEPS - 10
    assert [row[2].repeats for row in waiting.rows] == [2]
    rank, host, *_, of_all, of_node = blame.rows[0]
    assert (rank, host) == (2, "c02")
    assert of_all.value == pytest.approx(of_node.value)
    assert of_all.low < of_all.value < of_all.high
    (figure,) = section.figures
    assert figure.svg.startswith("<svg")
    assert "rank 2 on c02" in figure.conclusion
    assert "dark" not in figure.reading  # in dark mode a slow row is light


@pytest.mark.parametrize("repeats", [1, 2])
def test_waiting_has_one_value_on_the_page(tmp_path: Path, repeats: int) -> None:
    """The table of waiting adds up and agrees with the phases, the waterfall, the charges and the prose."""
    fake_run(tmp_path / "s" / "n1", nodes=1, steps=STEPS, mean_s=0.1)
    for repeat in range(repeats):
        added = delays(4, STEPS, slow=[2], slow_s=0.002, jitter_s=0.004, seed=repeat)
        write_run(tmp_path / "s" / f"n4-r{repeat}", added, repeat, noise_s=0.002, with_means=True)
    study = study_of(tmp_path / "s")
    section = stragglers.build(study)
    assert section is not None
    waiting, blame = section.tables[-2:]
    (row,) = waiting.rows
    recorded, floor, wait, persistent, transient = row[2:]
    assert 0 < floor.value < recorded.value
    assert recorded.value - floor.value == pytest.approx(wait.value)
    assert persistent.value + transient.value == pytest.approx(wait.value)
    curve = study.curves[0]
    assert wait == curve.points[-1].phases.mean_s("comm_wait_s")
    assert wait.value == pytest.approx(curve.points[-1].composition["comm_wait_s"])
    (found,) = waterfalls(study)
    parts = {part.name: part.seconds.value for part in found.parts.parts}
    assert parts[PERSISTENT] == pytest.approx(persistent.value)
    assert parts[TRANSIENT] == pytest.approx(transient.value)
    charged = [row[4].value for row in blame.rows]
    if repeats == 1:
        assert sum(charged) == pytest.approx(4 * wait.value)
        share = percent(transient.value / curve.points[-1].step_s.value)
        assert f"(jitter) takes {share} of the step" in section.conclusion


def test_a_slow_node_is_recognized_although_each_repeat_numbers_the_ranks_anew(tmp_path):
    for repeat in range(3):
        hosts = [*HOSTS[-repeat:], *HOSTS[:-repeat]] if repeat else HOSTS
        added = delays(4, STEPS, slow=[hosts.index("c02")], slow_s=0.05, jitter_s=0.003, seed=repeat)
        write_run(tmp_path / "sweep" / f"n4-r{repeat}", added, repeat, hosts=hosts)
    text = sentence_of(study_of(tmp_path / "sweep"))
    assert " on c02 is slow" in text
    assert "Found in 3 of 3 repeats." in text


def test_a_rank_that_is_slow_in_one_of_three_repeats_is_still_named(tmp_path):
    for repeat in range(3):
        added = delays(4, STEPS, slow=[] if repeat else [1], slow_s=0.05, jitter_s=0.003, seed=repeat)
        write_run(tmp_path / "sweep" / f"n4-r{repeat}", added, repeat)
    section = stragglers.build(study_of(tmp_path / "sweep"))
    assert section is not None
    found = "No rank or node is slow in half of the repeats; in 1 of 3 one is: rank 1 on c01."
    assert found in section.conclusion
    assert section.figures[0].conclusion.startswith(
        "In run n4-r0, rank 1 on c01 has the largest mean excess: "
    )


def test_a_rank_that_is_slow_on_another_node_in_each_repeat_is_one_cause(tmp_path):
    for repeat in range(3):
        hosts = [*HOSTS[repeat:], *HOSTS[:repeat]]
        added = delays(4, STEPS, slow=[1], slow_s=0.05, jitter_s=0.003, seed=repeat)
        write_run(tmp_path / "sweep" / f"n4-r{repeat}", added, repeat, hosts=hosts)
    text = sentence_of(study_of(tmp_path / "sweep"))
    assert text.startswith("On 4 nodes: Rank 1 on c0")
    assert text.endswith("Found in 3 of 3 repeats, on 3 nodes.")


@pytest.mark.parametrize(
    ("slow", "turn", "expected"),
    [
        ([[1], [], []], 0, "In 1 of 3 repeats, the others wait for a slow rank or node: rank 1 on c01."),
        (
            [[1], [2], [3]],
            0,
            "In 3 of 3 repeats, the others wait for a slow rank or node: rank 1 on c01, rank 2",
        ),
        ([[1], [1], [1]], 1, "The others wait for rank 1, which costs "),
    ],
    ids=["one repeat", "another rank in each", "one rank on several nodes"],
)
def test_waiting_names_a_rank_by_the_repeats_that_find_it(
    tmp_path: Path, slow: Sequence[Sequence[int]], turn: int, expected: str
) -> None:
    for repeat, ranks in enumerate(slow):
        added = delays(4, STEPS, slow=ranks, slow_s=0.05, jitter_s=0.003, seed=repeat)
        hosts = [*HOSTS[turn * repeat :], *HOSTS[: turn * repeat]]
        write_run(tmp_path / "s" / f"n4-r{repeat}", added, repeat, hosts=hosts)
    study = study_of(tmp_path / "s")
    repeats = straggler_text.examined(study, study.curves[0], study.curves[0].points[-1])
    assert straggler_text.waited_for([each.diagnosis for each in repeats]).startswith(expected)


def test_the_table_of_blame_has_the_numbers_of_the_recorded_ranks(tmp_path):
    run = write_run(tmp_path / "sweep" / "n4", delays(4, STEPS, slow=[2], slow_s=0.05, jitter_s=0.003))
    run.attempt(0).steps(0).unlink()
    section = stragglers.build(study_of(tmp_path / "sweep"))
    assert section is not None
    assert "Rank 2 on c02 is slow" in section.conclusion
    _, _, blame = section.tables
    assert blame.rows[0][:2] == [2, "c02"]
    assert sorted(row[0] for row in blame.rows) == [1, 2, 3]
    assert "rank 3 on c03: mean excess" in section.figures[0].svg


def record_rates(run: RunDir, slow_bytes_per_s: float) -> None:
    """Rates of 120 MB/s between neighbours, or less from and to node c01."""
    pairs = [(a, b) for a in range(4) for b in range(4) if abs(a - b) in (1, 3)]
    rates = [
        NodePairRate(source=a, target=b, bytes_per_s=slow_bytes_per_s if 1 in (a, b) else 120e6)
        for a, b in pairs
    ]
    record = LinkRates(attempt=0, backend="gloo", message_bytes=1 << 20, hosts=["x"] * 4, rates=rates)
    write_json(run.attempt(0).links, record.model_dump(mode="json"))


def with_a_slow_link(path: Path) -> RunDir:
    run = write_run(path, delays(4, STEPS, jitter_s=0.003), transfer_s=10 * TRANSFER_S)
    record_rates(run, 12e6)
    return run


def test_a_slow_link_is_named_from_its_rates(tmp_path):
    with_a_slow_link(tmp_path / "sweep" / "n4")
    text = sentence_of(study_of(tmp_path / "sweep"))
    assert "The link of node c01 is slow (12.0 MB/s where 120 MB/s are usual)" in text


@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_links_of_nodes_that_share_a_machine_have_no_verdict(tmp_path, cluster):
    attempt = with_a_slow_link(tmp_path / "sweep" / "n4").attempt(0)
    write_json(attempt.record, read_json(attempt.record) | {"cluster": cluster})
    if cluster == "slurm":
        slurm = {"SLURM_CONF": "/run/disttrain-demo/slurm.conf"}
        write_json(attempt.node_record(0), {"slurm": slurm})
    text = sentence_of(study_of(tmp_path / "sweep"))
    assert "No rank or node is slower than the others beyond chance." in text
    assert "No verdict on links: the nodes share a machine." in text
    assert "cannot be excluded" not in text


@pytest.mark.parametrize(("busy_percent", "judged"), [(10.0, True), (30.0, False)])
def test_links_between_busy_processors_have_no_verdict(tmp_path, busy_percent, judged):
    """0.1 or 0.3 of 2 processors; the ranks' own use is not in the samples."""
    samples = with_a_slow_link(tmp_path / "sweep" / "n4").attempt(0).host_samples(0)
    unknown = '"host_cpu_percent":'
    write_text(samples, samples.read_text().replace(f"{unknown}null", f"{unknown}{busy_percent}"))
    text = sentence_of(study_of(tmp_path / "sweep"))
    assert ("The link of node c01 is slow" in text) == judged
    assert ("No verdict on links: other processes used the processors." not in text) == judged


def test_nobody_is_named_for_jitter_and_long_transfer_is_no_excuse_for_a_name(tmp_path):
    write_run(tmp_path / "sweep" / "n4", delays(4, STEPS, jitter_s=0.02), transfer_s=10 * TRANSFER_S)
    study = study_of(tmp_path / "sweep")
    text = sentence_of(study)
    assert "No rank or node is slower than the others beyond chance." in text
    assert "late in turn (jitter)" in text
    assert "a slow link cannot be excluded" in text
    assert "An excess below " in text
    section = stragglers.build(study)
    assert section is not None
    assert [table.name for table in section.tables] == ["waiting", "blame"]
    (slow,) = [each.text for each in first_screen.answers(study, []) if each.question == first_screen.SLOW]
    assert "jitter" not in slow  # a loss of time, in no rank
    assert "a slow link cannot be excluded" in slow


def test_of_equal_ranks_the_heat_map_names_none(tmp_path):
    write_run(tmp_path / "sweep" / "n4", np.zeros((4, STEPS)))
    section = stragglers.build(study_of(tmp_path / "sweep"))
    assert section is not None
    (figure,) = section.figures
    assert figure.conclusion == "In run n4, no rank's own work exceeds the median of the others."


def test_a_damaged_record_of_links_is_as_none(tmp_path):
    run = write_run(tmp_path / "sweep" / "n4", delays(4, STEPS, slow=[1], slow_s=0.05))
    write_text(run.attempt(0).links, '{"rates": 3}')
    assert "Rank 1 on c01 is slow" in sentence_of(study_of(tmp_path / "sweep"))


def test_runs_of_one_recorded_rank_have_no_section(tmp_path):
    fake_run(tmp_path / "sweep" / "n4", nodes=4)
    study = study_of(tmp_path / "sweep")
    assert stragglers.build(study) is None


def test_links_without_measured_rates_are_not_in_the_sentence(tmp_path):
    """Transfer is short here, so that no sentence on unexplained transfer follows."""
    run = write_run(tmp_path / "sweep" / "n4", delays(4, STEPS, jitter_s=0.003), transfer_s=TRANSFER_S / 10)
    text = sentence_of(study_of(tmp_path / "sweep"))
    assert "cannot be excluded" not in text
    assert "No rank or node is slower than the others beyond chance." in text
    record_rates(run, 120e6)
    text = sentence_of(study_of(tmp_path / "sweep"))
    assert (
        "No rank or node is slower than the others beyond chance; no link was slow before training." in text
    )
