"""Settings of variables read from scripts, configuration files and records."""

from __future__ import annotations

import json

import pytest

from disttrain.errors import ConfigError
from jobs.fabric.settings_text import read_settings

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --export=ALL,NCCL_IB_SL=1
# export NCCL_PROTO=LL128
export NCCL_DEBUG=INFO NCCL_IB_HCA="=mlx5_0,mlx5_1"   # compute adapters
export NCCL_SOCKET_IFNAME=$(ip route | awk '/default/ {print $5}')
NCCL_ALGO="ring;allreduce:tree,ring" \\
  NCCL_NET='AWS Libfabric' srun --network=disable_rdzv_get python train.py --lr=0.1 LR=3
mpirun -x FI_PROVIDER=efa -np 4 ./app
"""


def test_a_batch_script() -> None:
    read = read_settings(SCRIPT, "job.sh")
    assert {name: (each.value, each.origin) for name, each in read.settings.items() if each.is_literal} == {
        "NCCL_IB_SL": ("1", "job.sh:3"),
        "NCCL_DEBUG": ("INFO", "job.sh:5"),
        "NCCL_IB_HCA": ("=mlx5_0,mlx5_1", "job.sh:5"),
        "NCCL_ALGO": ("ring;allreduce:tree,ring", "job.sh:7"),
        "NCCL_NET": ("AWS Libfabric", "job.sh:7"),
        "FI_PROVIDER": ("efa", "job.sh:9"),
    }
    assert not read.settings["NCCL_SOCKET_IFNAME"].is_literal
    assert read.srun_network == "disable_rdzv_get"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cd x; export A=1", {"A": "1"}),
        ("[ -d x ] && export B=2", {"B": "2"}),
        ("if true; then export A=1; else B=2; fi", {"A": "1", "B": "2"}),
        ("module load x || { export A=1; }", {"A": "1"}),
        ("A='x;y' python -m x --lr=1 B=2 | tee C=3 &", {"A": "x;y"}),
        ("A=1\n# a comment \\\nexport B=2", {"A": "1", "B": "2"}),
        ("export A=1 # a comment \\\nexport B=2", {"A": "1", "B": "2"}),
        ('export A="#" \\\n  B=2', {"A": "#", "B": "2"}),
        ("NCCL_DEBUG=WARN\n\n# comment\nNCCL_SOCKET_IFNAME==ens1f0\n",
         {"NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=ens1f0"}),
        ("A=1\nA=2\n", {"A": "2"}),
        ("", {}),
        ("# nothing\n", {}),
        ("NCCL_DEBUG = WARN\n", {"NCCL_DEBUG ": "WARN"}),
        ('local root = "/opt"\nNCCL_ROOT = pathJoin(root, "nccl")\nsetenv("A", "1")', {"A": "1"}),
        ("export A=1 B=2\nunset -v A\nexport C=3; export -n B\n", {"C": "3"}),
        ("unset A; export A=1", {"A": "1"}),
        ("export A=1; mpirun x; unset A", {"A": "1"}),
        ("export A=1\n/opt/bin/torchrun x.py\nunset A", {"A": "1"}),
        ("export A=1; echo mpirun; unset A; export B=2", {"B": "2"}),
        ("export A=1; (unset A; ./x); export B=2", {"A": "1", "B": "2"}),
        ("export A=1\n(\n  unset A\n  ./x\n)\nexport B=2", {"A": "1", "B": "2"}),
        ("export A=1\n(cd x && (./y))\nunset A\nexport B=2", {"B": "2"}),
        ("(cd x && (export C=3))", {"C": "3"}),
        ("export A=$(ls) B=2", {"A": "$(ls)", "B": "2"}),
        ("export B=x; python -c \"import os; os.environ['A']='1'\"", {"A": "1", "B": "x"}),
        ("(export A=1; ./x)\n( B=2 ./x )\n(cd x && export C=3)", {"A": "1", "B": "2", "C": "3"}),
        ("function f() { export A=1; }\ng() { B=2 ./x; }", {"A": "1", "B": "2"}),
        ("export A='(x)' B=f(x)", {"A": "(x)", "B": "f(x)"}),
        ("setenv A 1\nsetenv B 2 # csh\nunsetenv B", {"A": "1"}),
        ('setenv("A", "1")\npushenv( \'B\', "x y" )\n-- setenv("C", "3")', {"A": "1", "B": "x y"}),
        ("FROM image\nENV A=1 B=2\nENV C 3", {"A": "1", "B": "2", "C": "3"}),
        ("import os\nos.environ['A'] = \"1\"\nenviron.setdefault('B', '2')\n# os.environ['C'] = '3'",
         {"A": "1", "B": "2"}),
        ("typeset -rx A=1; readonly B=2; local -x C=3", {"A": "1", "B": "2", "C": "3"}),
        ("env -i -u HOME A=1 python x.py B=2", {"A": "1"}),
        ("timeout 30 env A=1 B=2 python x.py C=3", {"A": "1", "B": "2"}),
        ("time A=1 python x.py\nsudo -E B=2 python x.py", {"A": "1"}),
        ('{"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": 4}', {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}),
    ],
)  # fmt: skip
def test_other_texts(text: str, expected: dict[str, str]) -> None:
    read = read_settings(text, "x")
    assert {name: each.value for name, each in read.settings.items()} == expected
    assert read.srun_network is None


def test_a_file_of_nccl_is_no_shell_script() -> None:
    text = 'NCCL_DEBUG="WARN"\nNCCL_IB_TC=41\nNCCL_IB_TC=42\nexport NCCL_IB_SL=1\n'
    settings = read_settings(text, "/etc/nccl.conf").settings
    assert {name: (each.value, each.origin) for name, each in settings.items()} == {
        "NCCL_DEBUG": ('"WARN"', "/etc/nccl.conf:1"),
        "NCCL_IB_TC": ("41", "/etc/nccl.conf:2"),
        "export NCCL_IB_SL": ("1", "/etc/nccl.conf:4"),
    }
    assert read_settings(text, "job.sh").settings["NCCL_DEBUG"].value == "WARN"


def test_the_record_of_a_run() -> None:
    variables = {"NCCL_DEBUG": {"value": "WARN", "reason": "x", "source": "derived"}}
    inherited = {"NCCL_IB_TIMEOUT": {"value": "22", "origin": "/etc/nccl.conf"}}
    text = json.dumps({"schema_version": 1, "variables": variables, "inherited": inherited, "findings": []})
    assert read_settings(text, "env.json").settings.keys() == {"NCCL_DEBUG", "NCCL_IB_TIMEOUT"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("srun --export=ALL,NCCL_DEBUG=WARN,NCCL_NET=IB python x.py --export=A=1",
         {"NCCL_DEBUG": "WARN", "NCCL_NET": "IB"}),
        ("time /usr/bin/srun -N 2 --export NCCL_NET=IB hostname", {"NCCL_NET": "IB"}),
        ("A=1 exec srun --export=\"ALL,NCCL_IB_HCA='=mlx5_0,mlx5_1',B=2\" x",
         {"A": "1", "NCCL_IB_HCA": "=mlx5_0,mlx5_1", "B": "2"}),
        ("srun --export=ALL,A=1,B=2 \\\n  x && srun --export=C=3 y", {"A": "1", "B": "2", "C": "3"}),
        ("#SBATCH -N 2 --export=ALL,A=1 -n 4", {"A": "1"}),
        ("srun --export=NONE,A=1 x | tee --export=B=1", {"A": "1"}),
        ("python srun.py --export=A=1\nB=2", {"B": "2"}),
        ("srun -N 2 python x.py --export A=1\nB=2", {"B": "2"}),
        ("srun -lN2 -n 4 -- ./prog --export=A=1\nB=2", {"B": "2"}),
        ("srun --mpi pmix --label --container-image img.sqsh --export=ALL,A=1 prog", {"A": "1"}),
        ("srun -l -u -K1 -k --exclusive --nice -W 0 --export=A=1 prog --export=B=1", {"A": "1"}),
        ("sbatch -W --export=A=1 job.sh --export=B=1", {"A": "1"}),
        ("srun --export=A=1 --export=ALL,B=2 prog", {"B": "2"}),
        ("srun --part gpu $MORE \"${ARGS[@]}\" --export=A=1 prog", {"A": "1"}),
        ("salloc -N 2 srun --export=A=1 prog", {"A": "1"}),
        ("srun -N 2 env A=1 B=2 python C=3", {"A": "1", "B": "2"}),
        ("srun -n 2 bash -c 'A=1 prog --export=B=1'\nC=1", {"C": "1"}),
        ("srun -n 2 apptainer exec --env A=1 image prog --export=B=1", {"A": "1"}),
    ],
)  # fmt: skip
def test_variables_that_slurm_exports(text: str, expected: dict[str, str]) -> None:
    read = read_settings(text, "job.sh")
    assert {name: each.value for name, each in read.settings.items()} == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("apptainer exec --env A=1,B=2 img prog", {"A": "1", "B": "2"}),
        ("apptainer exec --env=A=1,B=2 img prog", {"A": "1", "B": "2"}),
        ("/opt/bin/singularity run --env A=mlx5_0,mlx5_1 --env B=2 img", {"A": "mlx5_0,mlx5_1", "B": "2"}),
        ("apptainer exec --env '\"A=mlx5_0,mlx5_1\",B=2' img", {"A": "mlx5_0,mlx5_1", "B": "2"}),
        ("apptainer exec --env 'A==mlx5_0,B=2' img", {"A": "=mlx5_0", "B": "2"}),
        ("srun -N 2 $APPTAINER exec --env A=1,B=2 img", {"A": "1", "B": "2"}),
        ("docker run -e A=1,B=2 --env=C=3,D=4 img", {"A": "1,B=2", "C": "3,D=4"}),
        ("mpirun -x A=1,B=2 prog", {"A": "1,B=2"}),
        ("mpiexec -genv A=1 -n 4 -env B 2 ./a", {"A": "1", "B": "2"}),
    ],
)  # fmt: skip
def test_variables_that_a_launcher_passes_on(text: str, expected: dict[str, str]) -> None:
    read = read_settings(text, "job.sh")
    assert {name: each.value for name, each in read.settings.items()} == expected


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("srun --network=disable_rdzv_get prog", "disable_rdzv_get"),
        ("srun -N 2 --network 'single_node_vni,job_vni' prog", "single_node_vni,job_vni"),
        ("#SBATCH --network=disable_rdzv_get\nA=1", "disable_rdzv_get"),
        ("A=1\nsrun python train.py --network=resnet", ""),
        ("A=1 srun prog # --network=disable_rdzv_get", ""),
        ("time srun --network=sn_all prog", "sn_all"),
        ("A=1\npython train.py --network=resnet", None),
        ("sbatch --network=sn_all job.sh", None),
    ],
)
def test_the_network_option_of_slurm(text: str, network: str | None) -> None:
    assert read_settings(f"export B=1\n{text}", "job.sh").srun_network == network


def test_a_value_that_the_shell_computes_for_srun_is_not_literal() -> None:
    read = read_settings("srun --export=ALL,NCCL_SOCKET_IFNAME=$NIC x", "job.sh")
    assert not read.settings["NCCL_SOCKET_IFNAME"].is_literal


@pytest.mark.parametrize(
    ("line", "is_literal"),
    [
        ('os.environ["A"] = "/tmp/x." + str(rank)', False),
        ('os.environ["A"] = "1" if x else "2"', False),
        ('setenv("A", "x" .. y)', False),
        ('os.environ.setdefault("A", "x".format(1))', False),
        ('os.environ["A"] = "1"  # why', True),
        ('os.environ["A"] = "1"; print(1)', True),
        ('setenv("A", "1" ) -- why', True),
    ],
)
def test_a_value_that_a_program_computes_is_not_literal(line: str, is_literal: bool) -> None:
    assert read_settings(line, "x").settings["A"].is_literal is is_literal


PROFILE = """\
# our site
partition: gpu
srun: {network: disable_rdzv_get}
setup: ["export NCCL_NET=Socket NCCL_DEBUG=INFO", "ulimit -l unlimited"]
environment:
  NCCL_IB_SL: {value: 1, reason: adaptive routing}
  NCCL_DEBUG:
    value: WARN
    reason: short logs
"""


def test_a_profile() -> None:
    read = read_settings(PROFILE, "site.yaml")
    assert {name: (each.value, each.origin) for name, each in read.settings.items()} == {
        "NCCL_NET": ("Socket", "site.yaml:4"),
        "NCCL_DEBUG": ("WARN", "site.yaml:8"),
        "NCCL_IB_SL": ("1", "site.yaml:6"),
    }
    assert read.srun_network == "disable_rdzv_get"
    without = read_settings("description: InfiniBand\n", "site.yaml")
    assert (dict(without.settings), without.srun_network) == ({}, "")


@pytest.mark.parametrize(
    "text", ["env:\n  NCCL_NET: IB\n", "model: {kind: mlp}\njob:\n  env: {NCCL_NET: IB}\n"]
)
def test_a_config(text: str) -> None:
    (setting,) = read_settings(text, "x.yaml").settings.values()
    assert (setting.name, setting.value) == ("NCCL_NET", "IB")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello world\n", "x: no variable is set; allowed are KEY=VALUE lines"),
        ("{broken", "x: not JSON"),
        ('{"variables": [1]}', "x: `variables` is not a mapping"),
        ('{"variables": {"A": {"reason": "x"}}}', "x: A has no value"),
        ("environment: {A: {reason: x}}", "x: A has no value; allowed: text, or {value: text}"),
    ],
)
def test_bad_input_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_settings(text, "x")


def test_a_key_of_yaml_that_is_no_text_is_left_out() -> None:
    read = read_settings("? [a, b]\n: 1\nenvironment: {NCCL_DEBUG: {value: INFO}}\n", "site.yaml")
    assert read.settings["NCCL_DEBUG"].value == "INFO"


def test_mappings_that_yaml_merges_count_and_own_keys_win() -> None:
    text = """
base: &base {NCCL_DEBUG: INFO, NCCL_IB_SL: 1}
other: &other {NCCL_DEBUG: WARN, NCCL_NET: IB}
environment: {<<: [*base, *other], NCCL_IB_SL: 3}
"""
    read = read_settings(text, "site.yaml").settings
    assert {name: each.value for name, each in read.items()} == {
        "NCCL_DEBUG": "INFO", "NCCL_NET": "IB", "NCCL_IB_SL": "3",
    }  # fmt: skip
