"""Tables and figure of the communication benchmark."""

from __future__ import annotations

from analysis.report.sections.comm_bench import printed
from disttrain.comm_bench.ddp_steps import FORMS, paired_differences, why_not_measured
from disttrain.records.comm_bench import CommBench
from tests.support.comm_bench import result

X = "\N{MULTIPLICATION SIGN}"


def steps(found: CommBench) -> dict[str, dict[str, str]]:
    _, head, rows = printed({"n2": found})[1]
    return {row[0]: dict(zip(head, row, strict=True)) for row in rows}


def test_the_conditions_are_stated():
    (title, *_), _ = printed({"n2": result()})
    assert "CPU, 2 nodes x 2 ranks, all on one machine" in title
    assert "gloo" in title
    (title, *_), _ = printed({"n2": result(device="NVIDIA H100", backend="nccl", nccl="2.27")})
    assert "GPU NVIDIA H100" in title
    assert "NCCL 2.27" in title


def test_collectives_and_steps_have_their_time_bytes_and_speed_up():
    assert printed({"n2": result()})[0][2] == [["all-reduce", "1.00 MiB", "10.0 ms [9.00, 12.0]", "150 MB/s"]]
    found = steps(result())
    assert found["topk"] == {
        "form": "topk", "step": "20.0 ms [18.0, 24.0]", "exposed": "10.0 ms [8.00, 11.0]", "sent": "156 KiB",
        "speed-up": f"2.50{X} [2.40, 2.60]", "gradients / exposed": "800 MB/s",
        "options": "",
    }  # fmt: skip
    assert found["hierarchical"]["step"] == "\N{EN DASH}"


def test_exposed_time_that_may_be_zero_gives_no_bandwidth_and_no_ratio():
    found = result()
    unclear = found.steps[1].model_copy(update={"exposed_low_s": -0.001})
    topk = steps(found.model_copy(update={"steps": [found.steps[0], unclear]}))["topk"]
    assert topk["exposed"] == "10.0 ms [-1.00, 11.0]"
    assert topk["gradients / exposed"] == "\N{EN DASH}"


def test_exposed_time_is_paired_by_round():
    """A disturbance of a whole round cancels, whatever the order of the rounds."""
    assert paired_differences([2.0, 13.0, 4.0], [1.0, 10.0, 2.0]) == [1.0, 3.0, 2.0]


def test_a_form_without_a_measurement_has_its_reason():
    assert "hierarchical not measured: 1 x 2 ranks" in printed({"n2": result()})[1][0]


def test_one_rank_a_node_has_no_hierarchy():
    assert "2 x 1 ranks: it needs several" in why_not_measured("hierarchical", 2, 1)
    assert [name for name in FORMS if why_not_measured(name, 1, 4)] == ["hierarchical"]
    assert why_not_measured("hierarchical", 2, 2) is None
