"""Planning and metadata of a checkpoint at many simulated ranks, in one process and without data of tensors.

`python -m benchmarks.checkpoint_plan [--ranks 512] [--layers 24] [--dcp]`. Goal: under 1 s at 512 ranks.

The state is that of a GPT trained with AdamW under DDP: 16 tensors per layer, three tensors of the optimizer
for each of them, and four tensors of each rank. All ranks derive their shares at the same time, so the
slowest rank counts. Rank 0 then receives one message of each rank and writes `.metadata` and manifest. The
network and the files of the tensors are excluded. `--dcp` adds the planner of
`torch.distributed.checkpoint` with the same state: rank 0 receives the plans of all ranks and creates the
global plan.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.planner import SavePlan

from benchmarks import result_record
from disttrain.checkpoint import storage
from disttrain.checkpoint.share import CapturedState, Share, State, own_share
from disttrain.checkpoint.storage import WrittenShare, describe_shares
from disttrain.records.checkpoint import Checkpoint, CheckpointFile
from disttrain.records.json_files import write_text

WIDTH = 2048
MANIFEST = Checkpoint(
    step=1, attempt=0, config_key="", code_hash="", world_size=1, global_batch_size=1, seed=0, dataset="",
    dataset_sha256=None, dataset_fingerprint=None, valid_loss=None, created="", torch=torch.__version__,
    files={}, tensors={}, positions=[],
)  # fmt: skip


def figures(raw: dict[str, Any]) -> dict[str, Any]:
    """Medians over the repeats; `total_s` is the sum of the parts that follow one another."""
    parts = {name: statistics.median(taken) for name, taken in raw["taken_s"].items()}
    total = parts["share"] + parts["receive"] + parts["metadata"]
    found = {f"{name}_s": round(seconds, 4) for name, seconds in parts.items()}
    counts = {name: raw[name] for name in ("ranks", "tensors", "largest_message_bytes", "manifest_bytes")}
    return {**counts, **found, "total_s": round(total, 4)}


def captured(rank: int, layers: int) -> CapturedState:
    """The state of one rank, on the meta device."""

    def tensor(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device="meta")

    norm: tuple[int, ...] = (WIDTH,)
    block: dict[str, tuple[int, ...]] = {
        "qkv": (3 * WIDTH, WIDTH),
        "proj": (WIDTH, WIDTH),
        "up": (4 * WIDTH, WIDTH),
        "down": (WIDTH, 4 * WIDTH),
    }
    shapes = {"norm.weight": norm, "norm.bias": norm, "embedding": (50304, WIDTH)}
    for layer in range(layers):
        for name, shape in block.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
            shapes |= {f"{layer}.{name}.norm.weight": norm, f"{layer}.{name}.norm.bias": norm}
    replicated: State = {}
    for name, shape in shapes.items():
        replicated[f"model.{name}"] = tensor(*shape)
        replicated[f"optimizer.{name}.step"] = tensor()
        replicated[f"optimizer.{name}.exp_avg"] = tensor(*shape)
        replicated[f"optimizer.{name}.exp_avg_sq"] = tensor(*shape)
    own = {f"rank-{rank:05d}.{name}": tensor(5056) for name in ("torch", "python", "numpy", "measured")}
    return CapturedState(replicated, own)


def message(share: Share, rank: int) -> bytes:
    """The message of a rank that has written `share`, for rank 0."""
    positions = {name: (1000 * number, 1000) for number, name in enumerate(share.tensors)}
    file = CheckpointFile(bytes=1000 * len(positions), sha256=f"{rank:064d}")
    return pickle.dumps(WrittenShare(share.described, positions, file, (None, "")))


def write_description(folder: Path, shares: list[WrittenShare]) -> None:
    """Write `.metadata` and manifest of these shares, by rank."""
    manifest = MANIFEST.model_copy(update=describe_shares(shares))
    storage.write_metadata(folder, manifest)
    write_text(folder / "manifest.json", manifest.model_dump_json(indent=1))


def measure(ranks: int, layers: int, repeats: int) -> dict[str, Any]:
    """Seconds of each part, and the sizes."""
    states = [captured(rank, layers) for rank in range(ranks)]
    taken: dict[str, list[float]] = {"share": [], "receive": [], "metadata": []}
    messages: list[bytes] = []
    for _ in range(repeats):
        share_s, messages = [], []
        for rank, state in enumerate(states):
            began = time.perf_counter()
            messages.append(message(own_share(state, rank, ranks), rank))
            share_s.append(time.perf_counter() - began)
        taken["share"].append(max(share_s))
        began = time.perf_counter()
        shares: list[WrittenShare] = [pickle.loads(each) for each in messages]
        received = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            write_description(Path(folder), shares)
            manifest_bytes = (Path(folder) / "manifest.json").stat().st_size
        taken["receive"].append(received - began)
        taken["metadata"].append(time.perf_counter() - received)
    tensors = len(states[0].replicated) + sum(len(state.own) for state in states)
    return {
        "ranks": ranks,
        "tensors": tensors,
        "largest_message_bytes": max(map(len, messages)),
        "manifest_bytes": manifest_bytes,
        "taken_s": taken,
    }


def measure_dcp(ranks: int, layers: int) -> float:
    """Seconds of DCP's plan on rank 0: plans of all ranks in, global plan, and the plan of all ranks out."""
    sent = []
    for rank in range(ranks):
        state = captured(rank, layers)
        planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
        planner.set_up_planner(state.replicated | state.own, is_coordinator=rank == 0)
        sent.append(pickle.dumps(planner.create_local_plan()))

    began = time.perf_counter()
    plans: list[SavePlan] = [pickle.loads(each) for each in sent]
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False)
    planner.set_up_planner({}, is_coordinator=True)
    pickle.dumps(planner.create_global_plan(plans))
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dcp", action="store_true", help="measure DCP's planner, too; needs minutes")
    result_record.add_option(parser)
    given = parser.parse_args()
    raw = measure(given.ranks, given.layers, given.repeats)
    if given.dcp:
        raw["taken_s"]["dcp"] = [measure_dcp(given.ranks, given.layers)]
    for name, value in figures(raw).items():
        print(f"{name:24} {value}")
    result_record.save("checkpoint_plan", given.save, figures(raw), raw)


if __name__ == "__main__":
    main()
