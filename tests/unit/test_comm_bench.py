"""Tables and figure of the communication benchmark."""

from __future__ import annotations

from analysis import comm_bench
from disttrain.comm_bench.ddp_steps import FORMS, paired_differences, why_not_measured
from tests.support.comm_bench import result


def rows(table: comm_bench.Table) -> dict[str, dict[str, str]]:
    return {row[0]: dict(zip(table.head, row, strict=True)) for row in table.rows}


def test_the_conditions_are_stated():
    title = comm_bench.tables({"n2": result()})[0].title
    assert "CPU, 2 nodes x 2 ranks, all on one machine" in title
    assert "gloo" in title
    title = comm_bench.tables({"n2": result(device="NVIDIA H100", backend="nccl", nccl="2.27")})[0].title
    assert "GPU NVIDIA H100" in title
    assert "NCCL 2.27" in title


def test_steps_have_time_bytes_and_speed_up():
    steps = rows(comm_bench.tables({"n2": result()})[1])
    topk = steps["topk"]
    assert (topk["step ms"], topk["exposed ms"], topk["MB/step"], topk["speed-up"]) == (
        "20",
        "10",
        "0.16",
        "2.50x",
    )
    assert topk["95 % of it"] == "2.40 to 2.60"
    assert (topk["GB/s"], topk["by exposed"]) == ("0.8", "4x")
    assert steps["hierarchical"]["step ms"] == comm_bench.NONE


def test_exposed_time_that_may_be_zero_gives_no_bandwidth_and_no_ratio():
    found = result()
    unclear = found.steps[1].model_copy(update={"exposed_low_s": -0.001})
    found = found.model_copy(update={"steps": [found.steps[0], unclear]})
    topk = rows(comm_bench.tables({"n2": found})[1])["topk"]
    assert (topk["exposed ms"], topk["95 % of exposed"]) == ("10", "-1 to 11")
    assert (topk["GB/s"], topk["by exposed"]) == (comm_bench.NONE, comm_bench.NONE)


def test_exposed_time_is_paired_by_round():
    """A disturbance of a whole round cancels, whatever the order of the rounds."""
    assert paired_differences([2.0, 13.0, 4.0], [1.0, 10.0, 2.0]) == [1.0, 3.0, 2.0]


def test_a_form_without_a_measurement_has_its_reason():
    notes = comm_bench.tables({"n2": result()})[1].notes
    assert "hierarchical not measured: 1 x 2 ranks" in notes


def test_the_page_has_all_tables_and_the_figure(tmp_path):
    page = comm_bench.write({"n2": result(), "n4": result(nodes=4)}, tmp_path / "report").read_text()
    assert page.count("\n## ") == 4
    assert "| all-reduce | 1 MiB | 10 | 9 to 12 | 150 |" in page
    image = (tmp_path / "report" / "communication.svg").read_text()
    assert "communication.svg" in page
    assert image.count("<svg") == 1


def test_one_rank_a_node_has_no_hierarchy():
    assert "2 x 1 ranks: it needs several" in why_not_measured("hierarchical", 2, 1)
    assert [name for name in FORMS if why_not_measured(name, 1, 4)] == ["hierarchical"]
    assert why_not_measured("hierarchical", 2, 2) is None
