"""The pre-flight finds the GPUs of a real machine through NVML, within seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_nvml_counts_what_torch_sees_and_a_healthy_gpu_has_no_error() -> None:
    command = [sys.executable, "-m", "jobs.checks.gpu_health"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20, env=os.environ)
    found = json.loads(done.stdout)
    assert found["gpus"] == torch.cuda.device_count()
    assert [each for each in found["problems"] if each["severity"] == "error"] == []
