"""Versions of NCCL, its plugins, libfabric and drivers, and the limits that adapters depend on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from jobs.fabric.description import Plugin, Software
from jobs.fabric.gpu_links import NvmlReading
from jobs.fabric.kernel_files import FileTree, natural_order
from jobs.fabric.memory_lock import effective_limit, limit_bytes
from jobs.fabric.nccl_files import read_nccl_files

_PYTHON_FOLDERS = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64", "/opt/venv/lib")
_LIBRARY_FOLDERS = (
    *(f"{above}/x86_64-linux-gnu" for above in ("/usr/local/lib", "/lib", "/usr/lib")),
    *(f"{above}/aarch64-linux-gnu" for above in ("/usr/local/lib", "/lib", "/usr/lib")),
    *("/lib64", "/usr/lib64", "/lib", "/usr/lib"),
)
"""Default folders of the dynamic linker, also of Debian and Ubuntu."""
_PLUGIN_FOLDERS = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/aws-ofi-nccl/lib",
    "/opt/hpcx/nccl_rdma_sharp_plugin/lib",
    "/usr/local/gib/lib64",
)
"""Folders in which vendors install plugins of NCCL, whether or not the dynamic linker searches them."""
_LIBFABRIC_FOLDERS = ("/opt/amazon/efa/lib64", "/opt/amazon/efa/lib", "/opt/amazon/efa/lib/x86_64-linux-gnu")
_CRAY_LIBFABRIC = "/opt/cray/libfabric"
_EFA_PACKAGES = "/opt/amazon/efa_installed_packages"
_PLUGIN = re.compile(r"libnccl-(net|tuner|profiler|env)(?:[-_][\w.-]+?)?\.so(?:\.\d+)*")
_NCCL_LIBRARY = re.compile(r"libnccl\.so\.(\d+\.\d+\.\d+)")
_OFI_PLUGIN = re.compile(rb"aws-ofi-nccl (\d+\.\d+\.\d+)")
_LARGEST_PLUGIN = 16 << 20


@dataclass(frozen=True)
class Process:
    """Properties of the process that will load the libraries; the default is one without an environment."""

    environ: Mapping[str, str] = field(default_factory=dict)
    home: str = "/root"
    """Home folder by the password file, in which NCCL looks for `.nccl.conf`."""
    python_path: tuple[str, ...] | None = None
    """Folders of Python packages; None for those below `/usr` and `/opt/venv`."""


def read_software(tree: FileTree, process: Process, nvml: NvmlReading | None) -> Software:
    """Everything of `Software` that the file tree shows. Imports no library."""
    linker = linker_folders(tree, process.environ)
    version, evidence = _nccl_version(tree, process, linker)
    plugins = _plugins(tree, linker)
    libfabric, libfabric_evidence = _libfabric(tree, linker)
    driver, is_open = _nvidia_driver(tree)
    lock = effective_limit(*(tree.text(f"/proc/self/{name}") for name in ("limits", "status", "uid_map")))
    return Software(
        nccl_version=version,
        nccl_evidence=evidence,
        nccl_plugins=plugins,
        nccl_files=read_nccl_files(tree, process.environ, process.home),
        ofi_plugin_version=_ofi_plugin(tree, plugins),
        libfabric_version=libfabric,
        libfabric_evidence=libfabric_evidence,
        nvidia_driver=driver or (nvml.driver if nvml else None),
        is_open_driver=is_open,
        kernel=tree.text("/proc/sys/kernel/osrelease"),
        has_peermem=_has_module(tree, "nvidia_peermem", "nv_peer_mem"),
        has_gdrcopy=tree.exists("/dev/gdrdrv") if tree.exists("/dev") else None,
        has_verbs_devices=_has_verbs_devices(tree),
        memory_lock_bytes=limit_bytes(lock),
        memory_lock=lock,
        shared_memory_bytes=_shared_memory_bytes(tree),
    )


def linker_folders(tree: FileTree, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Folders of the dynamic linker, in its order: `LD_LIBRARY_PATH`, `/etc/ld.so.conf.d`, `/etc/ld.so.conf`,
    defaults."""
    folder = "/etc/ld.so.conf.d"
    files = [f"{folder}/{name}" for name in tree.names(folder) if name.endswith(".conf")]
    lines = [
        line.partition("#")[0].strip()
        for path in (*files, "/etc/ld.so.conf")
        for line in (tree.text(path) or "").splitlines()
    ]
    listed = [*environ.get("LD_LIBRARY_PATH", "").split(":"), *lines]
    absolute = [path for path in listed if path.startswith("/")]
    return tuple(dict.fromkeys([*absolute, *_LIBRARY_FOLDERS]))


def _nccl_version(tree: FileTree, process: Process, linker: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Version of the NCCL that PyTorch will load, and the path that shows it.

    A preloaded library comes first. Then follows the package beside PyTorch, which PyTorch's own search path
    (RPATH) finds before `LD_LIBRARY_PATH`, and last the folders of the linker.
    """
    preloaded = [each for each in re.split(r"[: ]", process.environ.get("LD_PRELOAD", "")) if "nccl" in each]
    for path in preloaded:
        if version := _library_version(tree, path):
            return version, path
    for folder in process.python_path if process.python_path is not None else _python_folders(tree):
        for name in tree.names(folder):
            found = re.fullmatch(r"nvidia_nccl_cu\d+-(\d+(?:\.\d+)+)\.dist-info", name)
            if found:
                return found[1], f"{folder}/{name}"
    for folder in linker:
        path = f"{folder}/libnccl.so.2"
        if version := _library_version(tree, path):
            return version, path
    return None, None


def _library_version(tree: FileTree, path: str) -> str | None:
    """Version in the name of the file that a library's link leads to (`libnccl.so.2.27.5`)."""
    found = _NCCL_LIBRARY.fullmatch((tree.real_path(path) or "").rpartition("/")[2])
    return found[1] if found else None


def _python_folders(tree: FileTree) -> list[str]:
    return [
        f"{above}/{name}/{packages}"
        for above in _PYTHON_FOLDERS
        for name in tree.names(above)
        if re.fullmatch(r"python3(\.\d+)?", name)
        for packages in ("site-packages", "dist-packages")
    ]


def _plugins(tree: FileTree, linker: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Plugins of NCCL, one for each file with all its names."""
    found: dict[str, Plugin] = {}
    for folder in dict.fromkeys([*linker, *_PLUGIN_FOLDERS]):
        for name in tree.names(folder):
            kind = _PLUGIN.fullmatch(name)
            path = f"{folder}/{name}"
            if kind and (real := tree.real_path(path)):
                first = found.setdefault(real, Plugin(kind[1], path, folder in linker))
                found[real] = replace(first, names=tuple(dict.fromkeys([*first.names, name])))
    return tuple(found.values())


def _ofi_plugin(tree: FileTree, plugins: Iterable[Plugin]) -> str | None:
    """Version of aws-ofi-nccl: from the list of packages of the EFA installer, else in the plugin itself."""
    packages = tree.text(_EFA_PACKAGES) or ""
    if found := re.search(r"\b(?:lib)?nccl-ofi[_-](\d+\.\d+\.\d+)", packages):
        return found[1]
    for plugin in plugins:
        content = tree.content(plugin.path, _LARGEST_PLUGIN) if plugin.kind == "net" else None
        if content and (version := _OFI_PLUGIN.search(content)):
            return version[1].decode()
    return None


def _libfabric(tree: FileTree, linker: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Release of libfabric by its pkg-config file: the name of the library has another number."""
    cray = [
        f"{_CRAY_LIBFABRIC}/{name}/{folder}"
        for name in sorted(tree.names(_CRAY_LIBFABRIC), key=natural_order, reverse=True)
        for folder in ("lib64", "lib")
    ]
    for folder in dict.fromkeys([*linker, *_LIBFABRIC_FOLDERS, *cray]):
        path = f"{folder}/pkgconfig/libfabric.pc"
        if found := re.search(r"^Version:\s*(\S+)", tree.text(path) or "", re.MULTILINE):
            return found[1], path
    if found := re.search(r"\blibfabric-aws(?:-bin)?[_-](\d+\.\d+\.\d+)", tree.text(_EFA_PACKAGES) or ""):
        return found[1], _EFA_PACKAGES
    for folder in cray:
        version = folder.split("/")[4]
        if tree.exists(f"{folder}/libfabric.so.1") and re.fullmatch(r"\d+(\.\d+)+", version):
            return version, f"{folder}/libfabric.so.1"
    return None, None


def _nvidia_driver(tree: FileTree) -> tuple[str | None, bool | None]:
    """Version of NVIDIA's kernel module, and whether it is the open one."""
    text = tree.text("/proc/driver/nvidia/version") or ""
    found = re.search(r"Kernel Module(?:\s+for\s+\S+)?\s+(\d+(?:\.\d+)+)", text)
    return (found[1], "Open Kernel Module" in text) if found else (None, None)


def _has_module(tree: FileTree, *names: str) -> bool | None:
    if not tree.exists("/sys/module"):
        return None
    return any(tree.exists(f"/sys/module/{name}") for name in names)


def _has_verbs_devices(tree: FileTree) -> bool | None:
    if not tree.exists("/dev"):
        return None
    return any(name.startswith("uverbs") for name in tree.names("/dev/infiniband"))


def _shared_memory_bytes(tree: FileTree) -> int | None:
    """Size of `/dev/shm` by its mount option; None without one, where the kernel gives half the memory."""
    text = tree.text("/proc/self/mounts") or tree.text("/proc/mounts") or ""
    found = re.search(r"^\S+ /dev/shm \S+ \S*?\bsize=(\d+)([kmg]?)", text, re.MULTILINE)
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]] if found else None
