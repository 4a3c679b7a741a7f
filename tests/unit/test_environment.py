"""The environment of the ranks, and its record."""

from __future__ import annotations

import pytest

from disttrain.config.config_tree import Config
from disttrain.masking import is_secret, mask_argv, mask_lines
from jobs.core import environment
from jobs.schedulers.inherited_variables import command_inputs, outside_job, without_batch_system
from jobs.schedulers.slurm.scheduler import unused_by_sbatch


def config(**env: str) -> dict:
    return Config.model_validate({"job": {"env": env}, "resources": {"threads_per_rank": 3}}).as_dict()


def test_threads_do_not_depend_on_the_shell() -> None:
    added = environment.added_variables(config(), {"OMP_NUM_THREADS": "64"})
    assert environment.rank_environment({"OMP_NUM_THREADS": "64"}, added)["OMP_NUM_THREADS"] == "3"


def test_loopback_only_where_all_nodes_are_one_machine() -> None:
    assert environment.added_variables(config(), {}, one_machine=True)["GLOO_SOCKET_IFNAME"].value == "lo"
    assert "GLOO_SOCKET_IFNAME" not in environment.added_variables(config(), {})


def test_variables_of_the_network_are_added_where_the_nodes_are_several_machines() -> None:
    fabric = {
        "GLOO_SOCKET_IFNAME": environment.AddedVariable("ib0", "a reason", "derived", "/sys/x", "a guide")
    }
    added = environment.added_variables(config(), {}, fabric=fabric)
    assert added["GLOO_SOCKET_IFNAME"].value == "ib0"
    assert "NCCL_SOCKET_IFNAME" not in added
    on_one = environment.added_variables(config(), {}, fabric=fabric, one_machine=True)
    assert on_one["GLOO_SOCKET_IFNAME"].value == "lo"


def test_job_env_overrides_the_site() -> None:
    added = environment.added_variables(config(GLOO_SOCKET_IFNAME="eth7"), {}, one_machine=True)
    assert (added["GLOO_SOCKET_IFNAME"].value, added["GLOO_SOCKET_IFNAME"].source) == ("eth7", "config")


@pytest.mark.parametrize(
    ("name", "local", "slurm"),
    [
        ("RANK", False, False),
        ("LOCAL_RANK", False, False),
        ("WORLD_SIZE", False, False),
        ("MASTER_PORT", False, False),
        ("TORCHELASTIC_RUN_ID", False, False),
        ("SUBMITIT_LOCAL_JOB_ID", False, False),
        ("SLURM_NTASKS", False, True),
        ("SBATCH_ACCOUNT", False, False),
        ("SRUN_CPUS_PER_TASK", False, False),
        ("PMIX_RANK", False, False),
        ("PMI2_VERSION", False, False),
        ("SLURM_CONF", True, True),
        ("CUDA_VISIBLE_DEVICES", True, True),
        ("PRANK", True, True),
        ("HOME", True, True),
    ],
)
def test_variables_of_the_shell_that_are_removed(name: str, local: bool, slurm: bool) -> None:
    assert (name in environment.rank_environment(without_batch_system({name: "1"}), {})) is local
    within = environment.rank_environment({name: "1"}, {}).keys() - set(command_inputs({name: "1"}))
    assert (name in within) is slurm


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("WANDB_API_KEY", True),
        ("DB_PASSWORD", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("GOOGLE_APPLICATION_CREDENTIALS", True),
        ("GITHUB_PAT", True),
        ("NCCL_PAT_ENABLE", False),
        ("KEYBOARD", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("PATH", False),
        ("AUTHOR", False),
    ],
)
def test_secrets_are_known_by_name(name: str, secret: bool) -> None:
    assert is_secret(name) is secret


def test_a_command_line_without_its_secrets() -> None:
    given = ["submit.py", "--set", "job.env.HF_TOKEN=hush", "--api-key", "hush", "--name=x", "train.steps=5"]
    assert mask_argv(given) == [
        "submit.py", "--set", "job.env.HF_TOKEN=***", "--api-key", "***", "--name=x", "train.steps=5",
    ]  # fmt: skip
    given = ["--set", "job.env={A: 1, HF_TOKEN: hush}", "job.env.mine=hush", "--job.env.mine", "hush"]
    assert mask_argv(given, ["mine"]) == [
        "--set", "job.env={A: 1, HF_TOKEN: ***", "job.env.mine=***", "--job.env.mine", "***",
    ]  # fmt: skip


def test_a_diff_without_its_secrets() -> None:
    text = '+    HF_TOKEN: hush\n-x = {"API_KEY": "hush", "a": 1}\n config_key = made["key"]\n+NAME=x\n'
    assert mask_lines(text) == (
        '+    HF_TOKEN: ***\n-x = {"API_KEY": ***\n config_key = made["key"]\n+NAME=x\n'
    )
    assert mask_lines(text, ("NAME",)).endswith("\n+NAME=***\n")


def test_the_submitting_environment_has_no_variables_of_jobs_or_launchers() -> None:
    shell = {
        "HOME": "/home/ada",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SBATCH_CLUSTERS": "big",
        "SLURM_TIME_FORMAT": "relative",
        "CUDA_VISIBLE_DEVICES": "3",
    }
    leaks = (
        "SLURM_CPU_BIND",
        "SBATCH_PARTITION",
        "SRUN_DEBUG",
        "PMI_RANK",
        "RANK",
        "MASTER_ADDR",
        "SQUEUE_STATES",
    )
    assert outside_job(shell | dict.fromkeys(leaks, "1")) == shell
    within = outside_job(shell | {"SLURM_JOB_ID": "7"})
    assert within == {name: value for name, value in shell.items() if name != "CUDA_VISIBLE_DEVICES"}


def test_unused_variables_of_sbatch_are_named() -> None:
    shell = {"SBATCH_PARTITION": "gpu", "SBATCH_ACCOUNT": "a", "SBATCH_CLUSTERS": "big", "SLURM_JOB_ID": "1"}
    assert unused_by_sbatch(shell) == ["SBATCH_ACCOUNT", "SBATCH_PARTITION"]
