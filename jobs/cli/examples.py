"""Examples of command lines, shown by `--help`."""

from __future__ import annotations

EXAMPLES: dict[str | None, dict[str, str]] = {
    None: {
        "sweep --nodes 1 2 4 --wait": "sweeps/default.yaml on 1, 2 and 4 nodes",
        "sweep --nodes 1 2 4 --dry-run": "print what would be submitted, write nothing",
        "run --nodes 2 -- train.py --lr 3e-4": "a script of your own on two nodes",
        "status": "the state of every run",
        "report": "the efficiency report of the newest sweep",
        "cluster up": "a real Slurm with four nodes on this machine",
    },
    "sweep": {
        "sweep my.yaml --gpus 4 8 16": "on 1x4, 1x8 and 2x8 GPUs, where a node has 8",
        "sweep --nodes 1 2 4 --wait": "sweeps/default.yaml on 1, 2 and 4 nodes, with a live table",
        "sweep sweeps/batch.yaml --nodes 1 2 --set train.local_batch_size=32,64 --repeats 3": "",
        "sweep --nodes 1 2 4 --dry-run": "print what would be submitted, write nothing",
    },
    "run": {
        "run my.yaml --nodes 2": "one run on two nodes",
        "run my.yaml --set optim.lr=0.01": "another run of the same sweep",
        "run --nodes 2 -- train.py --lr 3e-4": "a script of your own",
    },
    "status": {
        "status": "all runs",
        "status default --state failed,lost": "the failed and lost runs of one sweep",
        "status --long": "GPU-hours and queue time",
    },
    "annotate": {
        "annotate default --tag baseline --note 'before the upgrade'": "a tag and a note for one sweep",
        "annotate default/n2": "print those of one run",
    },
    "bench comm": {
        "bench comm --nodes 2 4 --wait": "one job for each shape, then tables",
        "bench comm --nodes 2 --gpus-per-node 8 --max-mb 256": "messages up to 256 MiB",
    },
    "fabric lint": {
        "fabric lint job.sbatch --nccl 2.27.5": "the communication variables of a batch script",
        "fabric lint /etc/nccl.conf --root /": "those of a file, with the network of this machine",
    },
    "fabric explain": {
        "fabric explain": "the network of this node",
        "fabric explain --root copy-of-node7": "of a node whose files were copied",
    },
    "fabric ab": {
        "fabric ab NCCL_ALGO=Ring --nodes 2 --wait": "one variable",
        "fabric ab NCCL_PROTO=LL NCCL_ALGO=Ring --like default/n2": "for the step of a run",
    },
    "watch": {"watch default": "the runs of one sweep, until all have ended"},
    "show": {"show default/n2": "one run"},
    "logs": {
        "logs default/n2 -f": "rank 0, followed through requeues",
        "logs default/n2 --rank 3": "rank 3",
        "logs default/n2 --node 1": "agent and torchrun of node 1",
        "logs default/n2 --all -f": "all ranks and nodes, by time",
    },
    "cancel": {
        "cancel default": "all runs of one sweep",
        "cancel default/n2 --graceful": "let one run save a checkpoint first",
    },
    "resume": {
        "resume": "all runs that failed, stopped or were lost",
        "resume default --wait": "those of one sweep, with a live table",
    },
    "nodes": {
        "nodes": "the nodes that submissions exclude, and why",
        "nodes --clear n17": "use a node again",
        "nodes --exclude n18 --hours 48": "exclude a node by hand",
    },
    "clean": {
        "clean --failed --dry-run": "the runs that would be moved",
        "clean --failed": "move failed runs to the trash",
        "clean --restore": "undo the last clean",
    },
    "doctor": {
        "doctor": "problems of this cluster, worst first",
        "doctor --job --profile infiniband": "and of a node, with the options of a site profile",
        "doctor --write-profile mysite.yaml": "a site profile to start from",
    },
    "emulate": {"emulate --from default/n1 --out table.yaml": "write the layer table"},
    "ingest": {
        "ingest times.csv --sweep megatron": "runs of the sweep `megatron`",
        "ingest times.csv --global-batch-size 512": "a table without samples",
        "ingest times.csv --targets targets.yaml": "with targets for `report --check`",
    },
    "report": {
        "report": "the newest sweep",
        "report small large --out compared": "two sweeps in one report",
        "report new --against old": "is it faster, and what differs",
        "report --check": "and compare with the targets of the sweep file",
    },
    "open": {
        "open": "the report of the newest sweep",
        "open default --port 8000": "served on this port of localhost",
    },
    "tensorboard": {"tensorboard default": "the logs of one sweep"},
    "completion": {"completion bash": 'in ~/.bashrc: eval "$(python submit.py completion bash)"'},
    "cluster": {
        "cluster up --nodes 2": "two nodes",
        "cluster shell -- sinfo": "one Slurm command",
        "cluster down": "end all processes",
    },
    "cluster up": {"cluster up --nodes 2 --gpus-per-node 8": "two nodes with eight simulated GPUs each"},
    "cluster status": {"cluster status": "all clusters"},
    "cluster shell": {
        "cluster shell": "a shell on the cluster",
        "cluster shell -- python submit.py sweep --nodes 1 2": "a sweep on it",
    },
    "cluster down": {"cluster down --name mini": "one of several clusters"},
}
"""Arguments of `submit.py` and their effect, by verb; None for the program itself."""


def examples_text(verb: str | None) -> str:
    """The examples of a verb, as the end of its help; empty without any."""
    lines = EXAMPLES.get(verb, {})
    if not lines:
        return ""
    width = max(len(line) for line, effect in lines.items() if effect or len(lines) == 1)
    shown = [f"  python submit.py {line.ljust(width)}  {effect}".rstrip() for line, effect in lines.items()]
    return "\n".join(["example:" if len(lines) == 1 else "examples:", *shown])
