"""Variables by which W&B and MLflow continue one run over all starts. Standard library only."""

from __future__ import annotations

import json

from disttrain.records.run_directory import RunDir

TAG = "disttrain.id"
"""Tag of each MLflow run that a command begins: MLflow chooses the ids of its runs itself."""


def tracking_variables(run: RunDir, run_key: str) -> dict[str, str]:
    """By name. The id is the same for all starts, and another one where the run directory is made anew."""
    number = f"{run_key}-{(run.identified().directory_id or '').removeprefix('id-')}"
    return {
        "WANDB_RUN_ID": number,
        "WANDB_RESUME": "allow",
        "WANDB_RUN_GROUP": run.sweep,
        "WANDB_NAME": run.name,
        "WANDB_DIR": str(run.path),
        "MLFLOW_RUN_CONTEXT": json.dumps({TAG: number}),
    }
