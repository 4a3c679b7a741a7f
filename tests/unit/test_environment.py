"""The environment of the ranks, and names and texts of secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from disttrain.config.config_tree import Config
from disttrain.masking import is_secret, mask_argv, mask_lines
from jobs.core import environment
from jobs.core.environment import AddedVariable
from jobs.schedulers.inherited_variables import command_inputs, outside_job, without_batch_system
from jobs.schedulers.slurm.scheduler import unused_by_sbatch

FABRIC = {"GLOO_SOCKET_IFNAME": AddedVariable("ib0", "a reason", "derived", "/sys/x", "a guide")}
PROFILE = {"environment": {"GLOO_SOCKET_IFNAME": {"value": "eth1", "reason": "the site's"}}}


def added(
    inherited: dict[str, str] | None = None, env: dict[str, str] | None = None, **names: Any
) -> dict[str, str]:
    """Values of the variables to add for a run with these variables in `job.env`."""
    config = Config.model_validate(
        {"job": {"env": env or {}}, "resources": {"threads_per_rank": 3}}
    ).as_dict()
    variables = environment.added_variables(config, inherited or {}, **names)
    return environment.rank_environment(inherited or {}, variables)


def test_threads_do_not_depend_on_the_shell():
    assert added({"OMP_NUM_THREADS": "64"})["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("names", "interface"),
    [
        ({}, None),
        ({"fabric": FABRIC}, "ib0"),
        ({"fabric": FABRIC, "one_machine": True}, "lo"),
        ({"fabric": FABRIC, "profile": PROFILE}, "eth1"),
        ({"fabric": FABRIC, "profile": PROFILE, "env": {"GLOO_SOCKET_IFNAME": "eth7"}}, "eth7"),
    ],
)
def test_job_env_overrides_the_site_which_overrides_the_network(names, interface):
    assert added(**names).get("GLOO_SOCKET_IFNAME") == interface


@pytest.mark.parametrize(
    ("search_path", "expected"),
    [(None, "/code:/before:.:/source"), (["/conf", "/source", "/code"], "/conf:/code")],
    ids=["the trainer's code comes first", "a command's own modules come first"],
)
def test_the_module_search_path(search_path, expected):
    shell = {"PYTHONPATH": "/before:/source", "PYTHONSAFEPATH": "agent's"}
    env = added(shell, code=Path("/code"), source="/source", search_path=search_path)
    assert env["PYTHONPATH"] == expected
    assert env.get("PYTHONSAFEPATH") == ("1" if search_path is None else None)


SHELL = ["HOME", "CUDA_VISIBLE_DEVICES", "SLURM_CONF", "SLURM_TIME_FORMAT", "SBATCH_CLUSTERS", "PRANK"]
LAUNCHER = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "PMIX_RANK",
    "PMI2_VERSION",
]
INPUTS = ["SBATCH_ACCOUNT", "SBATCH_PARTITION", "SRUN_CPUS_PER_TASK", "SALLOC_QOS"]
OF_JOB = ["SLURM_NTASKS", "SLURM_CPU_BIND", "SQUEUE_STATES"]


def test_which_variables_of_the_shell_reach_jobs_and_ranks():
    shell = dict.fromkeys([*SHELL, *LAUNCHER, *INPUTS, *OF_JOB], "1")
    assert [*without_batch_system(shell)] == [*outside_job(shell)] == SHELL
    within = outside_job(shell | {"SLURM_JOB_ID": "7"})
    assert [*within] == [name for name in SHELL if name != "CUDA_VISIBLE_DEVICES"], "the devices of a job"
    assert command_inputs(shell) == INPUTS
    assert [*environment.rank_environment(shell, {})] == [*SHELL, *INPUTS, *OF_JOB]
    assert unused_by_sbatch(shell) == ["SBATCH_ACCOUNT", "SBATCH_PARTITION"]


SECRETS = "HF_TOKEN WANDB_API_KEY DB_PASSWORD AWS_SECRET_ACCESS_KEY GITHUB_PAT SLURM_JWT A_CREDENTIAL"
OTHERS = "NCCL_PAT_ENABLE KEYBOARD TOKENIZERS_PARALLELISM PATH AUTHOR"


def test_secrets_are_known_by_name():
    assert [name for name in f"{OTHERS} {SECRETS}".split() if is_secret(name)] == SECRETS.split()


@pytest.mark.parametrize(
    ("words", "masked"),
    [
        ("submit.py --set job.env.HF_TOKEN=hush", "submit.py --set job.env.HF_TOKEN=***"),
        ("--api-key hush --name=x train.steps=5", "--api-key *** --name=x train.steps=5"),
        ("job.env={A:1,HF_TOKEN:hush}", "job.env={A:1,HF_TOKEN:***"),
        ("job.env.mine=hush --job.env.mine hush", "job.env.mine=*** --job.env.mine ***"),
    ],
)
def test_a_command_line_without_its_secrets(words, masked):
    assert mask_argv(words.split(), ["mine"]) == masked.split()


def test_a_diff_without_its_secrets():
    text = '+    HF_TOKEN: hush\n-x = {"API_KEY": "hush", "a": 1}\n config_key = made["key"]\n+NAME=x\n'
    masked = '+    HF_TOKEN: ***\n-x = {"API_KEY": ***\n config_key = made["key"]\n+NAME=x\n'
    assert mask_lines(text) == masked
    assert mask_lines(text, ("NAME",)) == masked.replace("NAME=x", "NAME=***")
