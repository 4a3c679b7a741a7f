"""The A/B experiment on generated durations: order, caps, multiplicity, failures, and what is kept."""

from __future__ import annotations

import pytest

from jobs.arms.experiment import END_OF_SHARE, BaselineFailed, Experiment, Options, kept
from tests.support.paired_blocks import BROKEN, SLOW, Machine, experiment, log_noise

OPTIONS = Options(pairs=60, seconds=1e9)


def test_a_faster_setting_is_kept_after_a_second_start_of_both_sides():
    found = experiment("independent", 0, {SLOW: "-0.05"}, OPTIONS)
    assert [each.verdict for each in found.alone] == ["gain"]
    assert found.together is not None
    assert found.together.verdict == "gain"
    assert kept(found.alone, found.together) == {SLOW: "-0.05"}
    assert found.launcher.started == [{}, {SLOW: "-0.05"}, {}, {SLOW: "-0.05"}]
    assert found.launcher.running == []


def test_only_what_gains_is_tested_together_and_kept():
    settings = {f"{SLOW}1": "-0.05", f"{SLOW}2": "0.05", f"{SLOW}3": "0", f"{SLOW}4": "-0.04"}
    found = experiment("bursts", 1, settings, OPTIONS)
    assert [each.verdict for each in found.alone][:2] == ["gain", "loss"]
    assert found.together is not None
    assert kept(found.alone, found.together) == {f"{SLOW}1": "-0.05", f"{SLOW}4": "-0.04"}


def test_nothing_is_kept_that_does_not_gain_again():
    found = experiment("independent", 0, {SLOW: "-0.05"}, OPTIONS)
    assert found.together is not None
    for verdict in ("equivalent", "loss", "undecided", "failed"):
        assert kept(found.alone, found.together.model_copy(update={"verdict": verdict})) == {}
    assert kept(found.alone, None) == {}


def test_several_settings_share_the_level():
    alone = {count: experiment("independent", 2, _slow(count), OPTIONS).alone for count in (1, 3)}
    assert [each.alpha for each in alone[1]] == [0.05]
    assert [each.alpha for each in alone[3]] == pytest.approx([0.05 / 3] * 3)
    assert alone[3][0].pairs > alone[1][0].pairs


def test_the_largest_number_of_pairs_is_stated():
    (found,) = experiment("independent", 0, {SLOW: "0.01"}, Options(pairs=12, seconds=1e9)).alone
    assert (found.verdict, found.pairs) == ("undecided", 12)
    assert found.reason == "largest number of pairs: 12"


def test_each_comparison_has_an_equal_share_of_the_time():
    machine = Machine(log_noise("independent", 0, spread=0.3))
    found = Experiment(machine, Options(pairs=10_000, seconds=300), clock=lambda: machine.now)
    found.run(_slow(2))
    assert [each.reason for each in found.alone] == ["end of its share of the time"] * 2
    assert [each.duration_s for each in found.alone] == pytest.approx([100, 100], abs=12)


def test_starts_end_with_the_time_and_nothing_starts_after_it():
    machine = Machine(log_noise("independent", 0), start_s=100)
    found = Experiment(machine, Options(seconds=250), clock=lambda: machine.now)
    found.run({f"{SLOW}1": "-0.05", f"{SLOW}2": "-0.05"})
    assert [(each.verdict, each.reason) for each in found.alone] == [("undecided", END_OF_SHARE)] * 2
    assert machine.now <= 251
    assert machine.running == []

    machine = Machine(log_noise("independent", 0), start_s=100)
    found = Experiment(machine, Options(seconds=90), clock=lambda: machine.now)
    found.run({SLOW: "-0.05"})
    assert [(each.verdict, each.duration_s) for each in found.alone] == [("undecided", 0.0)]
    assert machine.started == [{}]


def test_gains_are_not_compared_again_after_the_end_of_the_time():
    machine = Machine(log_noise("independent", 0))
    late = Experiment(machine, OPTIONS, clock=lambda: machine.now)
    late.report = lambda _: setattr(machine, "now", 1e10)
    late.run({SLOW: "-0.05"})
    assert [each.verdict for each in late.alone] == ["gain"]
    assert late.together is None
    assert len(machine.started) == 2


def test_the_order_within_pairs_is_random():
    class Ordered(Machine):
        order: list[bool] = []  # noqa: RUF012

        def block(self, arm, steps):
            self.order.append(SLOW in self.started[arm])
            return super().block(arm, steps)

    machine = Ordered(log_noise("independent", 0, spread=0.3))
    Experiment(machine, Options(pairs=100, seconds=1e9), clock=lambda: machine.now).run({SLOW: "0"})
    pairs = list(zip(machine.order[4::2], machine.order[5::2], strict=True))
    assert 30 < sum(with_first for with_first, _ in pairs) < 70
    assert all(one != other for one, other in pairs)


def test_a_setting_whose_ranks_do_not_start_or_die_is_failed_and_the_next_one_is_compared():
    for broken, pairs in (("start", 0), ("block", 0)):
        found = experiment("independent", 0, {BROKEN: broken, SLOW: "0.05"}, OPTIONS)
        assert [each.verdict for each in found.alone] == ["failed", "loss"]
        assert found.alone[0].reason
        assert found.alone[0].pairs == len(found.alone[0].without_s) == pairs
        assert found.launcher.running == []


def test_without_a_baseline_there_is_no_experiment():
    machine = Machine(log_noise("independent", 0))
    with pytest.raises(BaselineFailed, match="does not exist"):
        Experiment(machine, OPTIONS, {BROKEN: "start"}, clock=lambda: machine.now).run({SLOW: "0"})


def test_blocks_are_as_long_as_intended():
    found = experiment("autocorrelated", 0, {SLOW: "0"}, Options(pairs=9, seconds=1e9, block_s=2.0))
    assert found.steps == pytest.approx(2.0 / 0.05, abs=2)


def _slow(count: int) -> dict[str, str]:
    return {f"{SLOW}{number}": "0.05" for number in range(count)}
