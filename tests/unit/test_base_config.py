"""The base config of a sweep, and its first difference from an earlier one."""

from __future__ import annotations

import copy

from sweeps.base_config import first_difference
from tests.support.sweep_plans import draft, expanded


def test_the_base_excludes_shape_axes_and_fields_outside_the_key() -> None:
    one = expanded(draft(), nodes="1 2").base
    assert first_difference(one, expanded(draft(), "train.local_batch_size=4,16", nodes="4").base) is None
    assert first_difference(one, expanded(draft(), "job.time_limit_min=5").base) is None
    assert first_difference(one, expanded(draft(), "optim.lr=0.001").base) is None  # the default, written out
    assert (
        first_difference(one, expanded(draft(), "optim.lr=0.5").base) == "optim.lr was 0.001 and is now 0.5"
    )
    assert first_difference(one, expanded(draft(), "sweep.scaling=strong").base) == (
        "sweep.scaling was weak and is now strong"
    )
    assert first_difference(one, expanded(draft(), "model.dropout=0.5").base) == (
        "model.dropout was 0.0 and is now 0.5"
    )


def test_a_difference_shows_null_and_absent_values() -> None:
    recorded = expanded(draft(), nodes="1 2").base
    now = copy.deepcopy(recorded)
    now["data"]["path"] = None
    recorded["data"]["path"] = 3
    assert first_difference(recorded, now) == "data.path was 3 and is now null"
    del now["data"]["path"]
    assert first_difference(recorded, now) == "data.path was 3 and is now absent"
    assert first_difference(now, recorded) == "data.path was absent and is now 3"


def test_a_base_recorded_before_a_key_was_added_differs_only_if_the_key_is_not_its_default() -> None:
    recorded = copy.deepcopy(expanded(draft(), nodes="1 2").base)
    del recorded["model"]["transforms"]
    assert first_difference(recorded, expanded(draft(), nodes="4").base) is None
    changed = expanded(draft(), "model.transforms=[package:function]").base
    assert first_difference(recorded, changed) == "model.transforms was [] and is now ['package:function']"
