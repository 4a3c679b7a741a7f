"""Predictions: closed forms, refusals, intervals, and the ledger that scores them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

import submit
from analysis.predict import ledger, replay
from analysis.predict.basis import basis_of, forecast_curve
from analysis.predict.forecast import Basis, Forecast, Refusal, Size, entry, forecast, replay_error, replayed
from analysis.predict.laws import LAWS, ensemble, law
from analysis.predict.ring import BelowMeasured, RingTimes, ring_times
from analysis.read.load import load_runs
from analysis.read.profiled import Collective, ProfiledStep, profiled_step
from analysis.report.sections.prediction import prediction
from analysis.results.curves import scaling_curves
from benchmarks.prediction import exact
from disttrain.records.comm_bench import CommBench
from disttrain.records.json_files import read_json
from jobs.status.run_folders import runs_of
from tests.support.fake_runs import fake_sweep, write_lines
from tests.support.studies import curves_of, rows_of, run_of, section_of, study_of
from tests.support.verbs import RUNS, ask, ask_json, refused

LATENCY_S, RATE = 1e-4, 1e8
CHUNKS = (2.0**10, 2.0**26)
RING = RingTimes("gloo", {"all_reduce": tuple((chunk, LATENCY_S + chunk / RATE) for chunk in CHUNKS)})
"""A step of a ring takes a latency and the bytes of its chunk at a rate."""


def all_reduce_s(size, nodes):
    return 2 * (nodes - 1) * (LATENCY_S + size / nodes / RATE)


def basis(**fields) -> Basis:
    """1, 2 and 4 nodes: 0.3 s of own work, and one bucket of 10 MB that is ready at the end of the backward
    pass."""
    size = 10_000_000
    sizes = [Size(1, 0.3, None, None, (16 / 0.3,))]
    for nodes in (2, 4):
        step_s = 0.3 + all_reduce_s(size, nodes) + 0.002
        sizes.append(Size(nodes, step_s, 0.002, all_reduce_s(size, nodes), (16 * nodes / step_s,)))
    step = ProfiledStep((Collective("all_reduce", size, 2, "world", 0.28, 0.1),), 0.28)
    values = {
        "key": "c", "sizes": tuple(sizes), "per_node": 1, "samples": 16, "base_rate": 16 / 0.3,
        "efficiency": 0.3 / sizes[-1].step_s, "step": step, "step_nodes": 2, "ring": RING,
    }  # fmt: skip
    return Basis(**values | fields)


def made(result) -> Forecast:
    assert isinstance(result, Forecast)
    return result


def test_a_law_goes_through_its_own_times():
    for name, growth in LAWS.items():
        times = [0.2 + 0.03 * growth(size) for size in (1, 2, 4)]
        assert law(name, (1, 2, 4), times, 16) == pytest.approx(0.2 + 0.03 * growth(16))
        assert law(name, (1, 2), (0.2, 0.1), 16) == pytest.approx(0.15), "no law falls"
    assert ensemble((2,), (0.2,), 16) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("ready", "seconds", "backward_end", "exposed"),
    [
        ((1.0, 2.0), (0.5, 0.5), 2.0, 0.5),  # the first is hidden
        ((1.0, 2.0), (3.0, 0.5), 2.0, 2.5),  # the second waits for the first
        ((1.0,), (0.5,), 2.0, 0.0),  # all of it is hidden
    ],
)
def test_exposed_communication(ready, seconds, backward_end, exposed):
    assert replay.exposed_s(ready, seconds, backward_end) == pytest.approx(exposed)


def test_waiting_grows_as_the_largest_of_the_nodes():
    random = np.random.default_rng(0).normal(size=(20_000, 64))
    for nodes in (2, 8, 64):
        assert replay.largest_of(nodes) == pytest.approx(random[:, :nodes].max(axis=1).mean(), rel=0.05)
    assert replay.waiting_s(0.01, 4, 64) == pytest.approx(0.01 * replay.largest_of(64) / replay.largest_of(4))
    assert replay.waiting_s(0.01, 1, 64) == 0


def test_a_ring_at_another_size():
    assert RING.seconds("all_reduce", 10e6, 16) == pytest.approx(all_reduce_s(10e6, 16))
    above = RING.seconds("all_reduce", 2.0**28, 2) / 2
    assert above == pytest.approx(2 * RING.steps["all_reduce"][1][1]), "at the rate of the largest chunk"
    with pytest.raises(BelowMeasured, match=r"chunks of 0\.5 KiB are below the measured 1 KiB"):
        RING.seconds("all_reduce", 1024, 2)


@pytest.mark.parametrize(("backend", "members"), [("gloo", 8), ("nccl", 2)])
def test_a_ring_of_a_benchmark(backend, members):
    """NCCL's rings cross the adapters of a node in parallel: its members are nodes."""
    time = {"median_s": 0.6, "low_s": None, "high_s": None, "repeats": 1}
    rates = {"algorithm_bytes_per_s": 1.0, "bus_bytes_per_s": 1.0}
    collective = {"kind": "all_gather", "bytes": 4096, "time": time, **rates}
    fields = {
        "device": "d", "backend": backend, "nodes": 2, "ranks_per_node": 4, "torch": "2", "nccl": None,
        "one_machine": False, "cpu_count": 1, "width": 1, "layers": 1, "rows": 1, "gradient_bytes": 4,
        "compute": time, "collectives": [collective], "steps": [],
    }  # fmt: skip
    times = ring_times(CommBench.model_validate(fields))
    ((chunk, seconds),) = times.steps["all_gather"]
    assert (chunk, seconds) == (4096 / members, pytest.approx(0.6 / (members - 1)))
    assert times.seconds("all_gather", 4096, members) == pytest.approx(0.6)


def test_a_replayed_step():
    found = made(forecast(basis(), 16))
    waiting = 0.002 * replay.largest_of(16) / replay.largest_of(4)
    parts = {"own work": 0.3, "exposed communication": all_reduce_s(10_000_000, 16), "waiting": waiting}
    assert found.parts == pytest.approx(parts)
    assert found.method == "replay"
    assert found.step_s == pytest.approx(sum(parts.values()))
    assert found.samples_per_s == pytest.approx(16 * 16 / found.step_s)
    assert found.efficiency == pytest.approx(0.3 / found.step_s)
    assert replay_error(basis()) == pytest.approx(0, abs=1e-12)


def test_the_replay_equals_a_simulation_of_events_without_noise():
    assert exact(seed=3, clusters=3) < 1e-9


def test_collectives_that_nothing_hides_add_up():
    shards = Collective("all_reduce", 99, 4, "shard", 0.0, 0.07)  # within a node, so it stays
    step = ProfiledStep((*basis().step.collectives, shards), 0.28)
    blocking = replayed(basis(step=step, is_blocking=True), 16)
    assert blocking["exposed communication"] == pytest.approx(all_reduce_s(10_000_000, 16) + 0.07)


@pytest.mark.parametrize(
    ("mib", "buckets"),
    [
        (1, [(1, 0.1), (1, 0.2), (1, 0.3)]),
        (1.5, [(2, 0.2), (1, 0.3)]),  # DDP closes a bucket that is full
        (8, [(3, 0.3)]),
    ],
)
def test_larger_buckets(mib, buckets):
    collectives = [Collective("all_reduce", 2**20, 2, "world", at, 0.01) for at in (0.1, 0.2, 0.3)]
    planned = replay.with_buckets(ProfiledStep(tuple(collectives), 0.3), int(mib * 2**20))
    assert [(each.bytes / 2**20, each.start_s) for each in planned.collectives] == buckets
    found = made(forecast(basis(planned=planned), 16))
    assert found.parts["own work"] == pytest.approx(0.3)
    assert found.parts["exposed communication"] < all_reduce_s(10_000_000, 16)
    unlike = forecast(basis(planned=planned, lacks="x"), 16)
    assert unlike == Refusal("other buckets need a replay of the step", "x"), "laws know no buckets"


def test_smaller_buckets_than_the_measured_are_refused():
    assert basis().step is not None
    with pytest.raises(ValueError, match=r"1 MiB is below the measured 9\.53674 MiB"):
        replay.with_buckets(basis().step, 2**20)


def test_an_interval_without_past_predictions():
    """max(2 %, 1.5 % x log2 of the ratio) at 90 %, and the spread of launches as published."""
    for nodes, model in ((8, 0.02), (64, 0.06)):
        found = made(forecast(basis(), nodes))
        launch = 1.6449 * 0.0021 * math.sqrt(2)
        assert found.half[90] == pytest.approx(math.hypot(model, launch), rel=1e-3)
        assert found.half[50] / found.half[90] == pytest.approx(0.6745 / 1.6449, rel=1e-3)
        assert found.bounds() == pytest.approx((found.step_s / math.exp(found.half[90]), found.bounds()[1]))


def test_measured_launches_replace_the_published_spread():
    rates = (100.0, 101.0, 99.0, 102.0, 98.0)
    sizes = (*basis().sizes[:2], basis().largest._replace(launches=rates))
    assert basis(sizes=sizes).spread == pytest.approx(np.log(rates).std(ddof=1))


def test_the_interval_of_past_predictions():
    """Of 9 curves, the 9th smallest score covers 90 %, and the 5th 50 %; one score a curve."""
    past = [ledger.Score(f"c{n}", "replay", 4, 0.01 * n * 2.3) for n in range(1, 10)]
    past += [ledger.Score("c1", "replay", 16, 1.0), ledger.Score("other", "laws", 4, 1.0)]
    found = made(forecast(basis(), 16, past))
    assert found.half == pytest.approx({50: 0.05 * 2.3, 90: 0.09 * 2.3})
    assert ledger.half_width(past[1:9], "replay", 4, 0.9) is None, "8 curves are too few"
    assert ledger.half_width(past, "replay", 2, 0.9) == pytest.approx(1.3 / 4.3), (
        "no ratio is near: the largest"
    )


def test_the_published_curves_give_the_laws_an_interval():
    assert len({score.curve for score in ledger.published()}) >= ledger.LEAST_CURVES
    half = ledger.half_width(ledger.published(), "laws", 2, 0.9)
    assert half == pytest.approx(max(abs(score.error) for score in ledger.published()))


@pytest.mark.parametrize(
    ("fields", "nodes", "reason"),
    [
        ({}, 65, "65 nodes are more than 16 times the measured 4; measure 5 nodes or more"),
        ({"lacks": "x", "efficiency": 0.7}, 8, "below 80% efficiency only a replayed step is predicted; x"),
    ],
)
def test_refused_sizes(fields, nodes, reason):
    found = forecast(basis(**fields), nodes)
    assert isinstance(found, Refusal)
    assert f"{found.reason}; {found.remedy}" == reason


@pytest.mark.parametrize(
    ("fields", "missing"),
    [
        ({"lacks": "no telemetry"}, "no telemetry"),
        (
            {"ring": RingTimes("gloo", {"all_reduce": RING.steps["all_reduce"][1:]})},
            "chunks of 610 KiB are below the measured 6.55e+04 KiB; predict --calibrate measures them",
        ),
        (
            {"sizes": (*basis().sizes[:2], basis().largest._replace(transfer_s=0.2, step_s=0.502))},
            "the measured step of 4 nodes is +10% beside the replayed one",
        ),
    ],
)
def test_laws_where_a_replay_lacks_something(fields, missing):
    given = basis(efficiency=0.9, **fields)
    found = made(forecast(given, 16))
    assert (found.method, found.missing, found.parts) == ("laws", missing, {})
    assert found.step_s == ensemble((2, 4), [size.step_s for size in given.sizes[1:]], 16)


def test_a_measured_size_is_not_predicted():
    with pytest.raises(ValueError, match="4 is not above the largest measured size, 4 nodes"):
        forecast(basis(), 4)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"nodes": (1,)}, "one size was measured; measure 1, 2 and 4 nodes"),
        ({"nodes": (1, 2), "metrics": {"oversubscribed": True}}, "ranks share the processors of one machine"),
        (
            {"nodes": (1, 2), "step_s": (0.1,), "scale": {2: 0.5}},
            "a step on 2 nodes is shorter than one on 1",
        ),
    ],
)
def test_curves_without_predictions(options, reason):
    scale = options.pop("scale", {})
    (curve,) = curves_of(**options)
    points = tuple(
        replace(point, step_s=point.step_s.scaled(scale.get(point.nodes, 1.0))) for point in curve.points
    )
    found = basis_of(replace(curve, points=points))
    assert isinstance(found, Refusal)
    assert f"{found.reason}; {found.remedy}".startswith(reason)


def test_a_strong_curve_is_refused():
    (curve,) = study_of(scaling="strong").curves
    found = basis_of(curve)
    assert isinstance(found, Refusal)
    assert found.remedy == "a sweep with scaling: weak"


def test_a_basis_from_records(tmp_path):
    """Profiled steps of two ranks: a collective starts with the first rank and lasts as on the last one."""
    root = fake_sweep(tmp_path, nodes=(1, 2), repeats=1, strategy="ddp", backend="gloo")
    attempt = load_runs([root])[1].folder.attempt(0)
    for rank, late in enumerate((0.0, 0.01)):
        collective = {"kind": "all_reduce", "bytes": 4096, "ranks": 2, "dimension": "world"}
        times = {"start_s": 0.05 + late, "duration_s": 0.03 - late, "hidden_s": 0.0, "exposed_s": 0.02}
        line = {"step": 7, "exposed_s": 0.02, "collectives": [collective | times]}
        write_lines(attempt.comm(rank), [line])
    runs = load_runs([root])
    step = profiled_step(runs[1].attempts, [])
    assert step == (
        (Collective("all_reduce", 4096, 2, "world", 0.05, pytest.approx(0.02)),),
        pytest.approx(0.06),
    )
    ((_, found, results),) = [forecast_curve(curve) for curve in scaling_curves(runs)]
    assert isinstance(found, Basis)
    assert (found.step, found.step_nodes) == (step, 2)
    assert found.lacks == "no measured collectives; predict --calibrate measures them"
    assert [nodes for nodes, _ in results] == [4, 8, 16]


def test_a_later_run_scores_a_prediction(tmp_path):
    path = tmp_path / ledger.FILE
    made_ = made(forecast(basis(key=ledger.curve_key(curves_of(nodes=(1, 2))[0])), 8))
    line = entry(basis(key=ledger.curve_key(curves_of(nodes=(1, 2))[0])), made_)
    ledger.add(path, [line, replace(line, nodes=16)])
    ledger.add(path, [line])
    with path.open("a") as file:
        file.write("cut off {\n")
    entries = ledger.read(path)
    assert [each.nodes for each in entries] == [8, 16]
    assert json.loads(path.read_text().splitlines()[0])["method"] == "replay"
    later, earlier = 4e9, 0.0
    for start, count in ((later, 1), (earlier, 0)):
        attempt = SimpleNamespace(span=(start, start + 60.0))
        runs = [run_of(nodes, mean_s=made_.step_s * 1.05, attempts=(attempt,)) for nodes in (1, 8)]
        scores = ledger.scores(entries, scaling_curves(runs))
        assert len(scores) == count, "only a run that began later"
    assert ledger.scores(entries, []) == []


def test_the_section():
    study = study_of(nodes=(1, 2, 4), strategy="ddp", efficiency=0.95)
    section = section_of(prediction, study)
    rows = rows_of(section)
    assert [row["size"] for row in rows] == [8, 16, 32]
    assert all(row["step_low_s"] < row["step_s"] < row["step_high_s"] for row in rows)
    assert {row["method"] for row in rows} == {"laws"}
    assert "a replay of the step lacks something" in section.paragraphs[0]
    assert prediction(study_of(nodes=(1,))) is None


@pytest.mark.usefixtures("cluster")
def test_the_verb(capsys, monkeypatch):
    fake_sweep(RUNS, nodes=(1, 2, 4), efficiency=0.95, strategy="ddp")
    answer = ask_json(capsys, "predict default --nodes 8 128")
    eight, refusal = answer["predictions"]
    assert (eight["nodes"], eight["method"], refusal["nodes"]) == (8, "laws", 128)
    assert refusal["remedy"] == "measure 8 nodes or more"
    assert [each.nodes for each in ledger.read(RUNS / ledger.FILE)] == [8]
    text = ask(capsys, "predict default --gpus 8 16")
    assert len(ledger.read(RUNS / ledger.FILE)) == 2, "the same prediction is written once"
    head, row = text.splitlines()[1:3]
    assert head.split()[:2] == ["NODES", "STEP"]
    assert row.split()[0] == "8"
    assert "no replay: no profiled step" in text
    assert "DEVICE-H" not in head
    monkeypatch.setattr(ledger, "add", Mock(side_effect=PermissionError(13, "Permission denied", "x")))
    text = ask(capsys, "predict default --samples 1e6")
    assert "DEVICE-H" in text
    text = ask(capsys, "predict default --nodes 8 64 --samples 1e6 --deadline 20min")
    assert "cheapest predicted size within the deadline: 64 nodes" in text
    assert "not predicted: --bucket-mb needs a replay" in ask(capsys, "predict default --bucket-mb 8")


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("predict default --nodes 4", "--nodes: 4 is not above the largest measured size, 4 nodes"),
        ("predict default --gpus 9", "--gpus: 9 is not a multiple of 2 devices a node"),
        ("predict default --deadline 5h", "--deadline: needs --samples, those of the training"),
        ("predict nope", "no sweep 'nope' in runs"),
        ("predict strong --calibrate", "no curve can be predicted: the batch of a rank changes"),
    ],
)
def test_bad_input(capsys, command, message):
    fake_sweep(RUNS, gpus_per_node=(2,), strategy="ddp")
    fake_sweep(RUNS, "strong", scaling="strong")
    assert message in refused(capsys, command)
    assert not (RUNS / ledger.FILE).exists()


@pytest.mark.usefixtures("cluster")
def test_a_calibration_measures_the_collectives_of_the_largest_size(capsys):
    fake_sweep(RUNS, gpus_per_node=(2,), strategy="ddp", backend="gloo")
    assert submit.main(["predict", "default", "--calibrate"]) == 0
    (run,) = runs_of(RUNS, "default-calibration")
    config = read_json(run.run_json)["config"]
    assert (config["resources"]["nodes"], config["resources"]["gpus_per_node"]) == (4, 2)
    words = config["command"]
    assert words[words.index("--size-factor") + 1] == "2"
    assert "disttrain.comm_bench" in words
