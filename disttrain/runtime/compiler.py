"""The compiler that a backend of `torch.compile` starts: triton on a GPU, a C++ compiler on the CPU."""

from __future__ import annotations

import shutil

import torch

from disttrain.errors import ConfigError, nearest


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
