"""Settings of variables read from scripts, configuration files and records."""

from __future__ import annotations

import pytest

from disttrain.errors import ConfigError
from jobs.fabric.settings import read_settings

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --export=ALL,NCCL_IB_SL=1,NCCL_IB_TC=41
# export NCCL_PROTO=LL128
if true; then export NCCL_DEBUG=INFO NCCL_IB_HCA="=mlx5_0,mlx5_1"; fi   # NCCL_DEBUG=WARN
export NCCL_SOCKET_IFNAME=$(ip route | awk '/default/ {print $5}')
NCCL_ALGO="ring;allreduce:tree,ring" \\
  NCCL_NET='AWS Libfabric' srun --network=disable_rdzv_get python train.py
(mpirun -x FI_PROVIDER=efa -np 4 --env NCCL_P2P_LEVEL=NVL)
srun --export="ALL,NCCL_SOCKET_FAMILY=AF_INET" x
"""


def test_a_batch_script() -> None:
    read = read_settings(SCRIPT, "job.sh")
    assert {name: (each.value, each.origin) for name, each in read.settings.items() if each.is_literal} == {
        "NCCL_IB_SL": ("1", "job.sh:3"),
        "NCCL_IB_TC": ("41", "job.sh:3"),
        "NCCL_DEBUG": ("INFO", "job.sh:5"),
        "NCCL_IB_HCA": ("=mlx5_0,mlx5_1", "job.sh:5"),
        "NCCL_ALGO": ("ring;allreduce:tree,ring", "job.sh:7"),
        "NCCL_NET": ("AWS Libfabric", "job.sh:8"),
        "FI_PROVIDER": ("efa", "job.sh:9"),
        "NCCL_P2P_LEVEL": ("NVL", "job.sh:9"),
        "NCCL_SOCKET_FAMILY": ("AF_INET", "job.sh:10"),
    }
    assert not read.settings["NCCL_SOCKET_IFNAME"].is_literal
    assert read.srun_network == "disable_rdzv_get"


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("A=1\nsrun --network=sn_all prog", "sn_all"),
        ("A=1 srun -N 2 --network 'single_node_vni,job_vni' prog", "single_node_vni,job_vni"),
        ("#SBATCH --network=disable_rdzv_get\nA=1", "disable_rdzv_get"),
        ("A=1 srun prog # --network=disable_rdzv_get", ""),
        ("A=1\npython train.py --network=resnet", None),
    ],
)
def test_the_network_option_of_slurm(text: str, network: str | None) -> None:
    read = read_settings(text, "job.sh")
    assert (read.srun_network, read.settings["A"].value) == (network, "1")


def test_a_file_of_nccl_is_no_shell_script() -> None:
    text = 'NCCL_DEBUG="WARN"\nNCCL_IB_TC=41\nNCCL_IB_TC=42\nexport NCCL_IB_SL=1\n'
    settings = read_settings(text, "/etc/nccl.conf").settings
    assert {name: (each.value, each.origin) for name, each in settings.items()} == {
        "NCCL_DEBUG": ('"WARN"', "/etc/nccl.conf:1"),
        "NCCL_IB_TC": ("41", "/etc/nccl.conf:2"),
        "export NCCL_IB_SL": ("1", "/etc/nccl.conf:4"),
    }


PROFILE = """\
partition: gpu
srun: {network: disable_rdzv_get}
setup: ["export NCCL_NET=Socket NCCL_DEBUG=INFO", "ulimit -l unlimited"]
environment:
  NCCL_IB_SL: {value: 1, reason: better than NCCL_IB_SL=0}
  NCCL_DEBUG:
    value: WARN
"""


def test_a_profile() -> None:
    read = read_settings(PROFILE, "site.yaml")
    assert {name: (each.value, each.origin) for name, each in read.settings.items()} == {
        "NCCL_NET": ("Socket", "site.yaml"),
        "NCCL_DEBUG": ("WARN", "site.yaml"),
        "NCCL_IB_SL": ("1", "site.yaml"),
    }
    assert read.srun_network == "disable_rdzv_get"
    assert read_settings("environment: {NCCL_DEBUG: WARN}", "site.yaml").srun_network == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.yaml", "model: {kind: mlp}\njob:\n  env: {NCCL_NET: IB}\n"),
        ("env.json", '{"variables": {"NCCL_NET": {"value": "IB", "reason": "A=1"}}, "findings": []}'),
        ("standard input", '{"NCCL_NET": "IB"}'),
    ],
)
def test_a_config_and_records(name: str, text: str) -> None:
    (setting,) = read_settings(text, name).settings.values()
    assert (setting.name, setting.value) == ("NCCL_NET", "IB")


@pytest.mark.parametrize(
    ("text", "message"), [("hello world\n", "x: no variable is set"), ("{broken", "x: not YAML or JSON")]
)
def test_bad_input_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(text, "x")
    assert read_settings("", "x").settings == {}
