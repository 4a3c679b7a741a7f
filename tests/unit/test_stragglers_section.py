"""Section of stragglers and its sentence on the first screen, for runs with known delays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.read.load import load_runs
from analysis.report import first_screen
from analysis.report.section import Section
from analysis.report.sections import stragglers
from analysis.report.sentences import say
from analysis.report.tables import table_view
from analysis.results.culprits import Culprit, Diagnosis, Recurrence
from analysis.results.links import SlowLink
from analysis.results.slow_ranks import Sensitivity
from analysis.stats.estimates import Estimate
from analysis.study import Study, make_study
from analysis.units import cell
from disttrain.records.json_files import read_json, write_json, write_text
from disttrain.records.run_directory import RunDir
from disttrain.records.steps import PHASES
from tests.support.fake_runs import NODE, fake_run
from tests.support.golden import golden
from tests.support.link_rates import record_rates, ring
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
) -> RunDir:
    """A run of four ranks with these delays; its metrics have the means of its step records."""
    run = fake_run(path, nodes=len(hosts), hosts=hosts, steps=STEPS, repeat=repeat)
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
    measured, metrics = rows[rows["step"] > 10], read_json(run.metrics)
    step_s = float(measured["step_s"].mean())
    changed = {
        "samples_per_s": metrics["global_batch_size"] / step_s,
        "measured_s": step_s * metrics["measured_steps"],
        "composition": {name: float(measured[name].mean()) for name in PHASES},
        "step_time": None,
    }
    write_json(run.metrics, metrics | changed)
    return run


def study_of(sweep: Path) -> Study:
    runs = load_runs([sweep])
    return make_study(runs)


def section_of(sweep: Path) -> Section:
    section = stragglers.build(study_of(sweep))
    assert section is not None
    return section


RANK = Culprit(
    "rank 3 on c01", "c01", (3,), "compute_s", Estimate(0.05, 0.049, 0.0512, 1, "within run"), 0.04,
    0.2, True, 11, 110,
)  # fmt: skip


def part(count: int = 1, repeats: int = 1, nodes: int = 0, **changes: Any) -> Recurrence:
    """A culprit whose excess and cost grow by a tenth from one repeat to the next."""
    first = replace(RANK, **changes)
    named = [
        replace(first, excess_s=first.excess_s.scaled(1 + at / 10), cost_s=first.cost_s * (1 + at / 10))
        for at in range(count)
    ]
    return Recurrence(tuple(named), repeats, nodes)


def limits(*sensitivity: Any) -> dict[str, Any]:
    return {"repeats": [Diagnosis((), Sensitivity(*sensitivity), "")]}


CASES = {
    "unknown": {"repeats": [], "lacking": "ranks 1, 2, 3 of 4 recorded 0 of 100 measured steps"},
    "waiting unknown": {},
    "rank": {"parts": [part()], "phase": "compute"},
    "for a while, on other nodes": {
        "parts": [part(2, 3, 2, persistent=False), part()], "phase": "compute",
    },
    "half": {"parts": [part(name="c02, c03", other_nodes="c00, c01")], "phase": "compute"},
    "link": {
        "parts": [part(name="the link of node c01", link=SlowLink("", 12e6, 120e6))],
        "phase": "transfer",
    },
    "once": {"repeats": [Diagnosis((RANK,), None, ""), *[Diagnosis((), None, "")] * 2]},
    "nobody": {**limits(0.0041, 0.061, 0), "links": "judged"},
    "elsewhere": {**limits(0.0041, 0.061, 0), "elsewhere": ["node c02 at 2 ranks"]},
    "no rates": {**limits(0.0041, 0.061, 0), "links": "not measured"},
    "few steps": limits(np.inf, 0.061, None),
    "not sensitive": {**limits(0.035, 0.061, 240), "links": "the nodes share a machine"},
    "ranks differ": limits(0.035, 0.061, None),
}  # fmt: skip
DEFAULTS = {
    "place": "4 ranks", "repeats": [Diagnosis((), None, "")], "parts": [], "phase": "", "lacking": "",
    "links": "", "elsewhere": [],
}  # fmt: skip


def test_the_sentence_of_each_case() -> None:
    texts = {case: say("slow", **DEFAULTS | numbers) for case, numbers in CASES.items()}
    assert max(len(text.split()) for text in texts.values()) <= 40
    golden("slow.txt", "".join(f"{case}: {text}\n" for case, text in texts.items()))


def test_a_slow_rank_is_named_on_the_first_screen_with_size_and_repeats(tmp_path):
    for repeat in range(2):
        added = delays(4, STEPS, slow=[2], slow_s=0.05, jitter_s=0.003, seed=repeat)
        write_run(tmp_path / "sweep" / f"n4-r{repeat}", added, repeat)
    study = study_of(tmp_path / "sweep")
    section = stragglers.build(study)
    assert section is not None
    assert section.conclusion.startswith("On 4 ranks: rank 2 on c02 is slow (")
    assert " (2 of 2 repeats): " in section.conclusion
    assert section.conclusion in first_screen.answers(study, [section]).values()
    named, ranks = section.tables
    (row,) = named.rows
    excess, _, share, _, last = row[3:]
    culprits = [each.culprits[0] for each in study.diagnoses(study.curves[0].points[-1])]
    assert (row[1], excess.repeats, excess.basis, share.repeats) == ("rank 2 on c02", 2, "repeats", 2)
    assert excess.value == pytest.approx(np.mean([each.excess_s.value for each in culprits]))
    assert excess.low < 0.05 < excess.high
    whole_s = sum(each.step_s for each in culprits)
    assert share.value == pytest.approx(sum(each.cost_s for each in culprits) / whole_s)
    assert f"{1000 * excess.value:.1f} ms [" in section.conclusion
    assert f"cost: {cell(share, 'share').line.removesuffix(', n=2')} of the step" in section.conclusion
    assert last == 1.0
    assert [[link.name for link in links] for links in named.sources] == [["n4-r0", "n4-r1"]]
    assert [row[0] for row in ranks.rows[:1]] == [2]
    rank, host, own, wait, last, of_all, of_node = ranks.rows[0]
    assert (rank, host, last) == (2, "c02", 1.0)
    assert wait == pytest.approx(0, abs=1e-4)  # the others wait for it
    assert min(row[3] for row in ranks.rows[1:]) > 0.03
    assert own.value > max(row[2].value for row in ranks.rows[1:])
    assert of_all == of_node > 0.9
    assert sum(row[5] for row in ranks.rows) == pytest.approx(1)
    (figure,) = section.figures
    assert "<title>rank 2 on c02</title>" in figure.svg


def test_equal_ranks_share_the_last_place_and_the_page_shows_eight(tmp_path: Path) -> None:
    write_run(tmp_path / "s" / "n10", np.zeros((10, STEPS)), hosts=[f"c{node:02}" for node in range(10)])
    ranks = section_of(tmp_path / "s").tables[-1]
    assert [row[4] for row in ranks.rows] == pytest.approx([0.1] * 10)
    view = table_view(ranks)
    assert (len(view.rows), view.left_out) == (8, 2)


def test_waiting_of_the_ranks_is_that_of_the_phases(tmp_path: Path) -> None:
    fake_run(tmp_path / "s" / "n1", nodes=1, steps=STEPS, mean_s=0.1)
    added = delays(4, STEPS, slow=[2], slow_s=0.002, jitter_s=0.004)
    write_run(tmp_path / "s" / "n4", added, noise_s=0.002)
    study = study_of(tmp_path / "s")
    section = stragglers.build(study)
    assert section is not None
    wait = study.curves[0].points[-1].phases.mean_s("comm_wait_s")
    assert wait is not None
    assert np.mean([row[3] for row in section.tables[-1].rows]) == pytest.approx(wait.value)


@pytest.mark.parametrize(
    ("slow", "turn", "expected"),
    [
        ([[2], [3], [0]], "numbers", " on c02 is slow"),  # each repeat numbers the ranks anew
        ([[1], [], []], "", "in 1 of 3: rank 1 on c01."),
        ([[1], [1], [1]], "nodes", "(3 of 3 repeats, 3 nodes)"),
    ],
)
def test_a_culprit_is_known_again_by_its_node_or_its_rank(tmp_path, slow, turn, expected):
    for repeat, ranks in enumerate(slow):
        by = {"numbers": -repeat, "nodes": repeat}.get(turn, 0) % 4
        added = delays(4, STEPS, slow=ranks, slow_s=0.05, jitter_s=0.003, seed=repeat)
        write_run(tmp_path / "s" / f"n4-r{repeat}", added, repeat, hosts=[*HOSTS[by:], *HOSTS[:by]])
    assert expected in section_of(tmp_path / "s").conclusion


def test_the_tables_have_the_numbers_of_the_recorded_ranks(tmp_path):
    run = write_run(tmp_path / "sweep" / "n4", delays(4, STEPS, slow=[2], slow_s=0.05, jitter_s=0.003))
    run.attempt(0).steps(0).unlink()
    section = section_of(tmp_path / "sweep")
    assert "rank 2 on c02 is slow" in section.conclusion
    assert section.tables[-1].rows[0][:2] == [2, "c02"]
    assert sorted(row[0] for row in section.tables[-1].rows) == [1, 2, 3]
    assert "<title>rank 3 on c03</title>" in section.figures[0].svg


def with_a_slow_link(path: Path) -> RunDir:
    """Rates of 120 MB/s between neighbours, or of 12 MB/s from and to node c01."""
    run = write_run(path, delays(4, STEPS, jitter_s=0.003), transfer_s=10 * TRANSFER_S)
    record_rates(run.attempt(0), ring(4, {1: 0.1}, 120e6))
    return run


def test_a_slow_link_is_named_from_its_rates(tmp_path):
    with_a_slow_link(tmp_path / "sweep" / "n4")
    section = section_of(tmp_path / "sweep")
    assert "the link of node c01 is slow" in section.conclusion
    assert [row[1:3] for row in section.tables[0].rows] == [["the link of node c01", "transfer"]]


@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_links_of_nodes_that_share_a_machine_have_no_verdict(tmp_path, cluster):
    attempt = with_a_slow_link(tmp_path / "sweep" / "n4").attempt(0)
    write_json(attempt.record, read_json(attempt.record) | {"cluster": cluster})
    if cluster == "slurm":
        slurm = {"SLURM_CONF": "/run/disttrain-demo/slurm.conf"}
        write_json(attempt.node_record(0), NODE | {"slurm": slurm})
    text = section_of(tmp_path / "sweep").conclusion
    assert "no rank or node is slow; " in text
    assert text.endswith("No verdict on links: the nodes share a machine.")


@pytest.mark.parametrize(("busy_percent", "judged"), [(10.0, True), (30.0, False)])
def test_links_between_busy_processors_have_no_verdict(tmp_path, busy_percent, judged):
    """0.1 or 0.3 of 2 processors; the ranks' own use is not in the samples."""
    samples = with_a_slow_link(tmp_path / "sweep" / "n4").attempt(0).host_samples(0)
    unknown = '"host_cpu_percent":'
    write_text(samples, samples.read_text().replace(f"{unknown}null", f"{unknown}{busy_percent}"))
    text = section_of(tmp_path / "sweep").conclusion
    assert ("the link of node c01 is slow" in text) == judged
    assert ("No verdict on links: other processes used the processors." not in text) == judged


@pytest.mark.parametrize(
    ("jitter_s", "steps", "expected"),
    [
        (0.003, 100, "no rank or node is slow; "),
        (0.05, 15, "cannot tell: below "),
        (0.003, 3, "too few steps"),
    ],
)
def test_nobody_is_slow_only_where_a_slow_rank_would_have_been_found(tmp_path, jitter_s, steps, expected):
    added = delays(4, STEPS, jitter_s=jitter_s)
    write_run(tmp_path / "sweep" / "n4", added, transfer_s=10 * TRANSFER_S)
    (run,) = load_runs([tmp_path / "sweep"])
    runs = [replace(run, steps=run.steps.chosen(run.steps.step <= 10 + steps))]
    study = make_study(runs)
    section = stragglers.build(study)
    assert section is not None
    assert expected in section.conclusion
    assert section.conclusion.endswith("no rates of links were measured.")
    assert [table.name for table in section.tables] == ["ranks"]


def test_a_damaged_record_of_links_is_as_none(tmp_path):
    run = write_run(tmp_path / "sweep" / "n4", delays(4, STEPS, slow=[1], slow_s=0.05))
    write_text(run.attempt(0).preflight, '{"bandwidth": 3}')
    assert "rank 1 on c01 is slow" in section_of(tmp_path / "sweep").conclusion


def test_runs_of_one_recorded_rank_have_no_section(tmp_path):
    fake_run(tmp_path / "sweep" / "n4", nodes=4)
    study = study_of(tmp_path / "sweep")
    assert stragglers.build(study) is None
