"""Which steps are calibrated, and the figures that are made of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from disttrain.checkpoint.state import dropped_gradients
from disttrain.config.sections import Config
from disttrain.telemetry.collective_stats import sampled_steps
from disttrain.telemetry.comm_cross_check import Calibration, _Seen, calibrated_steps, compare, summarize
from disttrain.telemetry.step_log import Passes
from tests.support.nets import FEATURES, Deep
from tests.support.stopping import alone


@given(st.integers(0, 12), st.integers(0, 12), st.integers(0, 40), st.integers(1, 2000))
def test_calibrated_steps_are_few_after_the_warm_up_and_not_looked_at(count, samples, warmup, steps):
    looked_at = sampled_steps(samples, warmup, steps) | {warmup + 3, warmup + 4}
    found = calibrated_steps(count, warmup, steps, looked_at)
    assert len(found) <= min(count, max(0, steps - warmup) / 20)
    assert all(warmup < step <= steps for step in found)
    assert not found & looked_at
    if steps - warmup >= 20 * count:
        assert len(found) == count


def seen(compute_s, exposed_s, silent_s, logged_s):
    return _Seen(Passes(compute_s, exposed_s), logged_s, silent_s)


def test_each_instrument_is_the_mean_over_ranks():
    step = compare(7, [seen(0.1, 0.05, 0.11, 0.048), seen(0.15, 0.01, 0.15, 0.009)])
    assert (step.step, step.compute_s, step.silent_s) == (7, pytest.approx(0.125), pytest.approx(0.13))
    assert (step.clock_s, step.ddp_logger_s) == pytest.approx((0.03, 0.0285))
    assert step.no_communication_s == pytest.approx((0.15 - 0.11 + 0.16 - 0.15) / 2)


def test_the_summary_is_the_median_over_the_steps():
    exposed_s = (0.1, 9.0, 0.2)
    steps = [compare(step, [seen(1.0, s, 1.0, s)]) for step, s in enumerate(exposed_s)]
    check = summarize(steps)
    assert (check.clock_s, check.ddp_logger_s, check.no_communication_s) == pytest.approx((0.2, 0.2, 0.2))
    assert [each.step for each in check.steps] == [0, 1, 2]


def test_a_logger_that_does_not_tell_on_some_rank_gives_no_figure():
    step = compare(1, [seen(1.0, 0.1, 1.0, 0.1), seen(1.0, 0.1, 1.0, None)])
    assert step.ddp_logger_s is None
    assert summarize([step]).ddp_logger_s is None
    assert summarize([]) is None


def test_gradients_of_a_pass_aside_are_never_there_together():
    model = Deep()
    with dropped_gradients(model):
        model(torch.ones(4, FEATURES)).sum().backward()
        assert all(parameter.grad is None for parameter in model.parameters())
    model(torch.ones(4, FEATURES)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("communicates", "repeatable", "wanted", "steps", "why"),
    [
        (False, True, 4, 1000, "one rank has nobody to communicate with"),
        (True, False, 4, 1000, "the passes of a loop that is not ours cannot be made again"),
        (True, True, 0, 1000, "telemetry.calibrations is 0"),
        (True, True, 4, 29, "too few steps: at most one in 20 has a calibration beside it"),
        (True, True, 4, 1000, "no calibration was made in this attempt"),
    ],
)
def test_where_there_is_no_check_the_reason_is_told(communicates, repeatable, wanted, steps, why):
    config = Config.model_validate({"telemetry": {"calibrations": wanted}})
    can = {"communicates": communicates, "repeatable": repeatable}
    calibration = Calibration(config, alone(), **can, steps=steps, looked_at=())
    fields, reasons = calibration.figures()
    assert fields == {"calibration_passes": 0, "comm_check": None}
    assert reasons == {"comm_check": why}
