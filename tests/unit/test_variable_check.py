"""Errors in communication variables of a config are printed at the submission."""

from __future__ import annotations

from pathlib import Path

import pytest

import submit
from tests.support.verbs import TINY

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.mark.parametrize(
    ("words", "warnings"),
    [
        ("NCCL_IB_TIMOUT=22", ["NCCL_IB_TIMOUT: no library reads it; did you mean 'NCCL_IB_TIMEOUT'?"]),
        (
            "GLOO_SOCKET_IFNMAE=eth0",
            ["GLOO_SOCKET_IFNMAE: no library reads it; did you mean 'GLOO_SOCKET_IF"],
        ),
        (
            "TORCH_NCCL_NAN_CHEK=1",
            ["TORCH_NCCL_NAN_CHEK: no library reads it; did you mean 'TORCH_NCCL_NAN_CH"],
        ),
        ("NCLL_SOCKET_IFNAME=eth0", ["NCLL_SOCKET_IFNAME: no library reads it; did you mean 'NCCL_SOCK"]),
        ("NCCL_IB_TIMEOUT=120", ["NCCL_IB_TIMEOUT: '120' is not allowed"]),
        ("NCCL_IB_TIMEOUT=22", []),
        ("NCCL_MY_PLUGINS_OWN=1", []),  # a warning of the lint, not an error
    ],
)
def test_errors_of_variables(
    words: str, warnings: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    variables = [f"job.env.{word}" for word in words.split()]
    assert submit.main(["run", f"{tmp_path}/tiny.yaml", "--nodes", "2", "--set", *variables]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "job.env" in line]
    assert len(lines) == len(warnings)
    for line, start in zip(lines, warnings, strict=True):
        assert line.startswith(f"warning: job.env.{start}")
