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
OF_SCRIPT = """\
job.sh:3 NCCL_IB_SL=1
job.sh:3 NCCL_IB_TC=41
job.sh:5 NCCL_DEBUG=INFO
job.sh:5 NCCL_IB_HCA==mlx5_0,mlx5_1
job.sh:7 NCCL_ALGO=ring;allreduce:tree,ring
job.sh:8 NCCL_NET=AWS Libfabric
job.sh:9 FI_PROVIDER=efa
job.sh:9 NCCL_P2P_LEVEL=NVL
job.sh:10 NCCL_SOCKET_FAMILY=AF_INET
"""
NCCL_FILE = 'NCCL_DEBUG="WARN"\nNCCL_IB_TC=41\nNCCL_IB_TC=42\nexport NCCL_IB_SL=1\n'
OF_NCCL_FILE = """\
/etc/nccl.conf:1 NCCL_DEBUG="WARN"
/etc/nccl.conf:2 NCCL_IB_TC=41
/etc/nccl.conf:4 export NCCL_IB_SL=1
"""
PROFILE = """\
partition: gpu
srun: {network: disable_rdzv_get}
setup: ["export NCCL_NET=Socket NCCL_DEBUG=INFO", "ulimit -l unlimited"]
environment:
  NCCL_IB_SL: {value: 1, reason: better than NCCL_IB_SL=0}
  NCCL_DEBUG:
    value: WARN
"""
OF_PROFILE = """\
site.yaml NCCL_NET=Socket
site.yaml NCCL_DEBUG=WARN
site.yaml NCCL_IB_SL=1
"""
RECORD = '{"variables": {"NCCL_NET": {"value": "IB", "reason": "A=1"}}, "findings": []}'


@pytest.mark.parametrize(
    ("name", "text", "settings"),
    [
        ("job.sh", SCRIPT, OF_SCRIPT),
        ("/etc/nccl.conf", NCCL_FILE, OF_NCCL_FILE),  # no shell script
        ("site.yaml", PROFILE, OF_PROFILE),
        ("x.yaml", "model: {kind: mlp}\njob:\n  env: {NCCL_NET: IB}\n", "x.yaml NCCL_NET=IB\n"),
        ("env.json", RECORD, "env.json NCCL_NET=IB\n"),
        ("standard input", '{"NCCL_NET": "IB"}', "standard input NCCL_NET=IB\n"),
        ("x", "", ""),
    ],
)
def test_settings_with_their_origins(name, text, settings):
    literal = [each for each in read_settings(text, name).settings.values() if each.is_literal]
    lines = [f"{each.origin} {each.name}={each.value}\n" for each in literal]
    assert sorted(lines) == sorted(settings.splitlines(keepends=True))


def test_a_value_that_the_shell_computes_is_not_literal():
    assert not read_settings(SCRIPT, "job.sh").settings["NCCL_SOCKET_IFNAME"].is_literal


@pytest.mark.parametrize(
    ("name", "text", "network"),
    [
        ("job.sh", SCRIPT, "disable_rdzv_get"),
        ("site.yaml", PROFILE, "disable_rdzv_get"),
        ("site.yaml", "environment: {NCCL_DEBUG: WARN}", ""),
        ("job.sh", "A=1\nsrun --network=sn_all prog", "sn_all"),
        ("job.sh", "A=1 srun -N 2 --network 'single_node_vni,job_vni' prog", "single_node_vni,job_vni"),
        ("job.sh", "#SBATCH --network=disable_rdzv_get\nA=1", "disable_rdzv_get"),
        ("job.sh", "A=1 srun prog # --network=disable_rdzv_get", ""),
        ("job.sh", "A=1\npython train.py --network=resnet", None),
    ],
)
def test_the_network_option_of_slurm(name, text, network):
    assert read_settings(text, name).srun_network == network


@pytest.mark.parametrize("text", ["hello world\n", "{broken"])
def test_bad_input_is_refused(text):
    with pytest.raises(ConfigError, match=r"^x: no"):
        read_settings(text, "x")
