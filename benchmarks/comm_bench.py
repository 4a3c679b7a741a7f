"""Save the result of a run of `disttrain bench comm` as a record, which `docs/results.md` shows.

    disttrain bench comm --nodes 2 --gpus-per-node 2 --wait
    python -m benchmarks.comm_bench runs/comm-bench/n2-g2 --link-mbit 1000 --save link-1gbit

`--link-mbit` is the rate of a node's link, which the ranks do not know.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks import result_record
from disttrain.records.comm_bench import CommBench
from disttrain.records.json_files import read_json
from disttrain.records.run_directory import RunDir


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Highest bus bandwidth of each collective at any message size, and the steps beside the baseline; times
    in ms. The burst of a shaped link can raise the bandwidth of small messages above its rate.
    """
    result = CommBench.model_validate(raw["result"])
    rates: dict[str, float] = {}
    for each in result.collectives:
        rates[each.kind] = max(rates.get(each.kind, 0.0), each.bus_bytes_per_s)
    steps = {}
    for form in result.steps:
        if form.step is None or form.exposed_s is None:
            continue
        steps[form.name.replace(" ", "-")] = {
            "step_ms": round(1e3 * form.step.median_s, 3),
            "exposed_ms": round(1e3 * form.exposed_s, 3),
            "handed_bytes": form.bytes,
            "speed_up": round(form.speed_up or 0.0, 3),
            "speed_up_95": [form.speed_up_low, form.speed_up_high],
        }
    return {
        "link_mbit": raw["link_mbit"],
        "gradient_bytes": result.gradient_bytes,
        "bus_bytes_per_s": rates,
        "steps": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="run directory of `bench comm`")
    parser.add_argument("--link-mbit", type=float, help="rate of a node's link in Mbit/s")
    result_record.add_option(parser)
    given = parser.parse_args()
    raw = {"link_mbit": given.link_mbit, "result": read_json(RunDir(given.run).comm_bench)}
    found = figures(raw)
    for name, row in found["steps"].items():
        print(f"{name:15}" + "  ".join(f"{key} {value}" for key, value in row.items()))
    result_record.save("comm_bench", given.save, found, raw)


if __name__ == "__main__":
    main()
