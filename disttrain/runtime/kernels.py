"""What computes on a device: the kernel of attention (`train.attention`), the compiler of `torch.compile`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.compiler import config as compiler_config
from torch.nn.attention import SDPBackend, sdpa_kernel

from disttrain.errors import ConfigError, nearest
from disttrain.runtime.device import device_name

KERNELS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
_ON_CPU = ("flash", "math")
_MIN_CAPABILITY = {"cudnn": (8, 0), "flash": (8, 0)}
"""Lowest CUDA compute capability with a kernel (`sdp_utils.cpp` of PyTorch)."""

_REFUSED = "No available kernel"
"""Begins PyTorch's message for a call of attention that no allowed kernel takes."""


def require_kernel(wanted: str, device: torch.device) -> None:
    """Raise `ConfigError` for a kernel that the device does not have; `auto` is on every device."""
    if wanted == "auto":
        return
    at, name = f"train.attention={wanted}", device_name(device)
    if device.type == "cpu":
        if wanted not in _ON_CPU:
            raise ConfigError(f"{at} needs a GPU, but this rank trains on the CPU; use flash or math")
    elif torch.cuda.get_device_capability(device) < _MIN_CAPABILITY.get(wanted, (0, 0)):
        raise ConfigError(
            f"{at} needs compute capability 8.0, which {name} does not have; use efficient or auto"
        )
    elif wanted == "cudnn" and (torch.version.hip is not None or not torch.backends.cudnn.is_available()):
        raise ConfigError(f"{at}: this torch has no cuDNN for {name}; use flash or auto")


@contextmanager
def attention_kernel(wanted: str) -> Iterator[None]:
    """Context in which attention runs in the kernel `wanted` alone; `auto` leaves the choice to PyTorch.

    Raises `ConfigError` for a call that the kernel does not take. The setting holds for the process.
    """
    if wanted == "auto":
        yield
        return
    # a compiled graph contains the kernel, which the keys of PyTorch's caches of graphs lack
    tag = f"{compiler_config.cache_key_tag} attention={wanted}"
    patched = compiler_config.patch(cache_key_tag=tag)  # type: ignore[attr-defined]  # made at run time
    try:
        with sdpa_kernel(KERNELS[wanted]), patched:
            yield
    except RuntimeError as error:
        if _REFUSED not in str(error):
            raise
        raise ConfigError(
            f"train.attention={wanted}: the kernel does not take a call of the model, as with dropout on "
            "a CPU or with a mask; the warnings of PyTorch name the reason; use train.attention=auto"
        ) from error


def require_backend(backend: str | None) -> None:
    """Raise `ConfigError` unless torch has the `backend`."""
    if backend is not None and backend not in (known := torch.compiler.list_backends(exclude_tags=())):
        hint = nearest(backend, known)
        raise ConfigError(f"compile.backend={backend!r} is unknown; allowed: {', '.join(known)}{hint}")


def require_compiler(backend: str | None, device: torch.device) -> None:
    """Raise `ConfigError` unless torch has the `backend`, and the compiler of its code for `device` is
    installed."""
    require_backend(backend)
    if backend != "inductor":
        return
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            raise ConfigError(
                f"compile.backend=inductor needs the package triton and a GPU that it supports, which "
                f"{torch.cuda.get_device_name(device)} with this installation is not; use "
                "compile.backend=aot_eager or compile.scope=none"
            )
        return
    from torch._inductor import config

    names = [name for name in config.cpp.cxx if name]
    if not any(shutil.which(name) for name in names):
        raise ConfigError(
            f"compile.backend=inductor needs a C++ compiler on the CPU, and none of {', '.join(names)} is on "
            "PATH; set CXX, or use compile.backend=aot_eager or compile.scope=none"
        )
