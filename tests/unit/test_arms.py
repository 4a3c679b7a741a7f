"""A/B comparisons of variables: what is compared, the sequential verdict, and the course of an experiment.

Rates of wrong and found verdicts are over generated noise, with fixed seeds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.fabric_ab import trial
from disttrain.comm_bench.arm_rank import config_of
from disttrain.errors import ConfigError
from disttrain.records.json_files import read_json, write_json
from jobs.arms.decision import decide, median_interval, needed_on_one_side
from jobs.arms.experiment import END_OF_SHARE, BaselineFailed, Experiment, Options, kept
from jobs.arms.plan import baseline_changes, changed, doubtful_settings, parse_settings
from tests.support.fake_runs import fake_run
from tests.support.paired_blocks import BROKEN, NOISE, SLOW, Machine, log_noise


def test_values_may_hold_any_text():
    words = ["NCCL_IB_HCA==mlx5_0,mlx5_1", "NCCL_NET=", "A=b c", "NCCL_MY_PLUGINS_OWN=1"]
    assert parse_settings(words) == {
        "NCCL_IB_HCA": "=mlx5_0,mlx5_1", "NCCL_NET": "", "A": "b c", "NCCL_MY_PLUGINS_OWN": "1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["NCCL_ALGO"], "VAR=VALUE"),
        (["2X=1"], "VAR=VALUE"),
        (["A=1", "A=2"], "twice"),
        (["MASTER_ADDR=x"], "launcher"),
        (["WANDB_API_KEY=x"], "secret"),
        (["NCLL_SOCKET_IFNAME=eth0"], "did you mean 'NCCL_SOCKET_IFNAME'"),
        (["NCCL_IB_TIMEOUT=120"], "NCCL_IB_TIMEOUT=120 is not allowed; it takes an integer from 1 to 31."),
    ],
)
def test_other_words_are_refused_and_doubtful_ones_compared_on_request(words, message):
    with pytest.raises(ConfigError, match=message) as caught:
        parse_settings(words)
    if "--allow-unknown" in str(caught.value):
        settings = parse_settings(words, allow_unknown=True)
        assert [f"{name}={value}" for name, value in settings.items()] == words
        assert len(doubtful_settings(settings)) == 1
    else:
        with pytest.raises(ConfigError, match=message):
            parse_settings(words, allow_unknown=True)


def test_the_baseline_lacks_a_setting_that_holds_already():
    environment = {"A": "1", "B": "2", "C": "3"}
    removed = baseline_changes({"A": "1", "B": "9", "D": "4"}, environment)
    assert removed == {"A": None}
    assert changed(environment, removed) == {"B": "2", "C": "3"}
    assert changed(environment, {**removed, "A": "1"}) == environment


def test_a_compressed_scheme_of_a_repeated_step_acts_from_the_first_step(tmp_path):
    run = fake_run(tmp_path / "s" / "r", nodes=2, end="planned")
    record = read_json(run.run_json)
    record["config"]["parallel"]["gradient_communication"] = {"scheme": "powersgd", "warmup_steps": 100}
    write_json(run.run_json, record)
    assert config_of(run).parallel.gradient_communication.warmup_steps == 0


@pytest.mark.parametrize(
    ("log_ratios", "verdict"),
    [
        ([], "undecided"),
        ([0.5] * 8, "undecided"),  # too few, however clear they are
        ([0.5] * 9, "gain"),
        ([0.011] * 20, "gain"),
        ([-0.011] * 20, "loss"),
        ([0.0099] * 20, "equivalent"),
        ([-0.0099] * 20, "equivalent"),
        ([*[0.001, -0.001] * 15, 3.0], "equivalent"),  # an outlier
    ],
)
def test_the_interval_is_compared_with_the_margin(log_ratios, verdict):
    found = decide(log_ratios)
    assert (found.verdict, found.pairs) == (verdict, len(log_ratios))
    assert (found.low is None, found.ratio is None) == (len(log_ratios) < 9, not log_ratios)
    assert decide([0.5] * 8).ratio == pytest.approx(math.exp(0.5))


def test_the_ends_are_order_statistics():
    values = [random.Random(1).gauss(0, 1) for _ in range(40)]
    count = needed_on_one_side(40, 0.05)
    assert count is not None
    assert median_interval(values, 0.05) == (sorted(values)[40 - count], sorted(values)[count - 1])


@pytest.mark.parametrize("alpha", [0.1, 0.05, 0.01])
def test_the_probability_of_ever_excluding_the_median_is_below_alpha(alpha):
    """Exact, over the fair signs of 200 pairs; it is not far below, so that few pairs are wasted."""
    inside, excluded = {0: 1.0}, 0.0
    for n in range(1, 201):
        after: dict[int, float] = {}
        for above, probability in inside.items():
            for count in (above, above + 1):
                after[count] = after.get(count, 0.0) + probability / 2
        needed = needed_on_one_side(n, alpha)
        out = [count for count in after if needed is not None and max(count, n - count) >= needed]
        excluded += sum(after.pop(count) for count in out)
        inside = after
    assert 0.3 * alpha < excluded <= alpha


OPTIONS, TRIALS = Options(pairs=100, seconds=1e9), 200


def test_equal_arms_are_rarely_called_different():
    """Also with a margin of 0, which leaves the confidence sequence alone."""
    cases = [(kind, seed) for kind in NOISE for seed in range(TRIALS // len(NOISE))]
    with_margin = [trial(kind, seed, 0.0, OPTIONS) for kind, seed in cases]
    without = [trial(kind, seed, 0.0, replace(OPTIONS, margin=0.0)) for kind, seed in cases]
    for trials in (with_margin, without):
        assert sum(each.verdict in ("gain", "loss") for each in trials) <= 0.05 * TRIALS
    quiet = [each for each, (kind, _) in zip(with_margin, cases, strict=True) if kind == "autocorrelated"]
    assert {each.verdict for each in quiet} == {"equivalent"}
    assert max(each.pairs for each in quiet) <= 20


@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize(("slow", "verdict"), [(0.03, "loss"), (-0.03, "gain")])
def test_a_difference_of_three_percent_is_found_with_its_sign(kind, slow, verdict):
    verdicts = [trial(kind, seed, slow, OPTIONS).verdict for seed in range(10)]
    assert verdicts.count(verdict) >= 9
    assert set(verdicts) <= {verdict, "equivalent", "undecided"}


def experiment(
    settings: dict[str, str], kind: str = "independent", seed: int = 0, *, machine: Machine | None = None,
    report: Callable[[Experiment], None] = lambda _: None, removed: Any = None, **options: float,
) -> tuple[Experiment, Machine]:  # fmt: skip
    """A finished experiment on generated durations, after which no arm runs."""
    machine = machine or Machine(log_noise(kind, seed))
    values: Any = {"pairs": 60, "seconds": 1e9} | options
    made = Experiment(machine, Options(**values), removed or {}, report, clock=lambda: machine.now)
    made.run(settings)
    assert machine.running == []
    return made, machine


def slow(*shares: float) -> dict[str, str]:
    return {f"{SLOW}{number}": str(share) for number, share in enumerate(shares)}


def test_only_what_gains_alone_and_again_in_new_processes_is_kept():
    found, machine = experiment(slow(-0.05, 0.05, 0, -0.04), "bursts", 1)
    assert [each.verdict for each in found.alone] == ["gain", "loss", "equivalent", "gain"]
    gained = {"SLOW0": "-0.05", "SLOW3": "-0.04"}
    assert found.together is not None
    assert machine.started == [
        {},
        *({name: value} for name, value in slow(-0.05, 0.05, 0, -0.04).items()),
        {},
        gained,
    ]
    assert kept(found.alone, found.together) == gained
    for verdict in ("equivalent", "loss", "undecided", "failed"):
        assert kept(found.alone, found.together.model_copy(update={"verdict": verdict})) == {}
    assert kept(found.alone, None) == {}


def test_several_settings_share_the_level():
    one, three = (experiment(slow(*[0.05] * count), seed=2)[0].alone for count in (1, 3))
    assert [each.alpha for each in one + three] == pytest.approx([0.05, *[0.05 / 3] * 3])
    assert three[0].pairs > one[0].pairs


def test_caps_are_stated_and_the_time_is_shared():
    (found,) = experiment(slow(0.01), pairs=12)[0].alone
    assert (found.verdict, found.pairs, found.reason) == ("undecided", 12, "largest number of pairs: 12")
    noisy = Machine(log_noise("independent", 0, spread=0.3))
    alone = experiment(slow(0.05, 0.05), machine=noisy, pairs=10_000, seconds=300)[0].alone
    assert [each.reason for each in alone] == [END_OF_SHARE] * 2
    assert [each.duration_s for each in alone] == pytest.approx([100, 100], abs=12)


def test_starts_end_with_the_time_and_nothing_starts_after_it():
    late = Machine(log_noise("independent", 0), start_s=100)
    found, _ = experiment(slow(-0.05, -0.05), machine=late, seconds=250)
    assert [(each.verdict, each.reason) for each in found.alone] == [("undecided", END_OF_SHARE)] * 2
    assert late.now <= 251
    late = Machine(log_noise("independent", 0), start_s=100)
    found, _ = experiment(slow(-0.05), machine=late, seconds=90)
    assert [(each.verdict, each.duration_s) for each in found.alone] == [("undecided", 0.0)]
    assert late.started == [{}]


def test_gains_are_not_compared_again_after_the_end_of_the_time():
    machine = Machine(log_noise("independent", 0))
    found, _ = experiment(slow(-0.05), machine=machine, report=lambda _: setattr(machine, "now", 1e10))
    assert ([each.verdict for each in found.alone], found.together) == (["gain"], None)
    assert len(machine.started) == 2


class Recorded(Machine):
    """Records the arm of each block. An arm that dies has used the time up, with `end_s`."""

    end_s = 0.0

    def __init__(self) -> None:
        super().__init__(log_noise("independent", 0, spread=0.3))
        self.order: list[int] = []

    def block(self, arm: int, steps: int) -> float:
        self.order.append(arm)
        try:
            return super().block(arm, steps)
        finally:
            self.now += self.end_s if self.order[-1] and len(self.order) > 4 else 0


def test_the_order_within_pairs_is_random():
    machine = Recorded()
    experiment(slow(0), machine=machine, pairs=100)
    pairs = [*zip(machine.order[4::2], machine.order[5::2], strict=True)]
    assert 30 < sum(first == 1 for first, _ in pairs) < 70
    assert {*map(sum, pairs)} == {1}, "one block of each"


@pytest.mark.parametrize("broken", ["start", "block"])
def test_a_setting_whose_ranks_do_not_start_or_die_is_failed_and_the_next_one_is_compared(broken):
    found, _ = experiment({BROKEN: broken} | slow(0.05))
    assert [each.verdict for each in found.alone] == ["failed", "loss"]
    first = found.alone[0]
    assert (bool(first.reason), first.pairs, first.without_s, first.with_s) == (True, 0, [], [])


def test_ranks_that_die_at_the_end_of_the_time_have_failed_all_the_same():
    machine = Recorded()
    machine.end_s = 1000
    found, _ = experiment({BROKEN: "block"}, machine=machine, seconds=500)
    assert [each.verdict for each in found.alone] == ["failed"]


def test_without_a_baseline_there_is_no_experiment():
    with pytest.raises(BaselineFailed, match="does not exist"):
        experiment(slow(0), removed={BROKEN: "start"})


def test_blocks_are_as_long_as_intended():
    found, _ = experiment(slow(0), "autocorrelated", pairs=9, block_s=2.0)
    assert found.steps == pytest.approx(2.0 / 0.05, abs=2)
