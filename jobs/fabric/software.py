"""Versions of NCCL, its plugins, libfabric and drivers, files of variables that NCCL reads, and limits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from jobs.fabric.description import ConfigurationFile, Plugin, Software
from jobs.fabric.gpus import NvmlReading
from jobs.fabric.kernel_files import FileTree, natural_order

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
_MACHINE_FILE = "/etc/nccl.conf"
UNLIMITED = "unlimited"
_CAP_IPC_LOCK = 14
"""Number of the capability in `linux/capability.h`."""
_ALL_USERS = ["0", "0", "4294967295"]
"""`uid_map` of the initial user namespace."""


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
    nccl, nccl_evidence = _nccl_version(tree, process, linker)
    plugins = _plugins(tree, linker)
    libfabric, libfabric_evidence = _libfabric(tree, linker)
    # the EFA installer lists its packages; elsewhere, the version of aws-ofi-nccl stands in the plugin
    ofi = tree.match(r"\b(?:lib)?nccl-ofi[_-](\d+\.\d+\.\d+)", _EFA_PACKAGES)[0]
    network = [plugin.path for plugin in plugins if plugin.kind == "net"]
    version = "/proc/driver/nvidia/version"
    driver = tree.match(r"Kernel Module(?:\s+for\s+\S+)?\s+(\d+(?:\.\d+)+)", version)[0]
    lock = effective_limit(*(tree.text(f"/proc/self/{name}") for name in ("limits", "status", "uid_map")))
    return Software(
        nccl_version=nccl,
        nccl_evidence=nccl_evidence,
        nccl_plugins=plugins,
        nccl_files=read_nccl_files(tree, process.environ, process.home),
        ofi_plugin_version=ofi or tree.match(r"aws-ofi-nccl (\d+\.\d+\.\d+)", *network)[0],
        libfabric_version=libfabric,
        libfabric_evidence=libfabric_evidence,
        nvidia_driver=driver or (nvml.driver if nvml else None),
        is_open_driver="Open Kernel Module" in (tree.text(version) or "") if driver else None,
        kernel=tree.text("/proc/sys/kernel/osrelease"),
        has_peermem=tree.exists_in("/sys/module", "nvidia_peermem", "nv_peer_mem"),
        has_gdrcopy=tree.exists_in("/dev", "gdrdrv"),
        has_verbs_devices=tree.exists_in("/dev", *_verbs_devices(tree)),
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
    return tuple(dict.fromkeys([*(path for path in listed if path.startswith("/")), *_LIBRARY_FOLDERS]))


def _nccl_version(tree: FileTree, process: Process, linker: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Version of the NCCL that PyTorch will load, and the path that shows it.

    A preloaded library comes first. Then follows the package beside PyTorch, which PyTorch's own search path
    (RPATH) finds before `LD_LIBRARY_PATH`, and last the folders of the linker.
    """
    preloaded = [path for path in re.split(r"[: ]", process.environ.get("LD_PRELOAD", "")) if "nccl" in path]
    python = _python_folders(tree) if process.python_path is None else process.python_path
    packages = [f"{folder}/{name}" for folder in python for name in tree.names(folder)]
    for path in (*preloaded, *packages, *(f"{folder}/libnccl.so.2" for folder in linker)):
        # a package has the version in its name, a library in the name of the file that its link leads to
        names = f"{path} {tree.real_path(path)}" if "nccl" in path else ""
        pattern = r"/nvidia_nccl_cu\d+-(\d+(?:\.\d+)+)\.dist-info |/libnccl\.so\.(\d+\.\d+\.\d+)$"
        if found := re.search(pattern, names):
            return found[1] or found[2], path
    return None, None


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
    plugins: dict[str, Plugin] = {}
    for folder in dict.fromkeys([*linker, *_PLUGIN_FOLDERS]):
        for name in tree.names(folder):
            kind = _PLUGIN.fullmatch(name)
            path = f"{folder}/{name}"
            if kind and (real := tree.real_path(path)):
                first = plugins.setdefault(real, Plugin(kind[1], path, folder in linker))
                plugins[real] = replace(first, names=tuple(dict.fromkeys([*first.names, name])))
    return tuple(plugins.values())


def _libfabric(tree: FileTree, linker: tuple[str, ...]) -> tuple[str | None, str | None]:
    """Release of libfabric by its pkg-config file, the list of the EFA installer, or Cray's folder: the name
    of the library has another number."""
    releases = sorted(tree.names(_CRAY_LIBFABRIC), key=natural_order, reverse=True)
    cray = {f"{_CRAY_LIBFABRIC}/{name}/{lib}": name for name in releases for lib in ("lib64", "lib")}
    folders = dict.fromkeys([*linker, *_LIBFABRIC_FOLDERS, *cray])
    configuration = [f"{folder}/pkgconfig/libfabric.pc" for folder in folders]
    libraries = {f"{folder}/libfabric.so.1": name for folder, name in cray.items()}
    versions = [
        tree.match(r"^Version:\s*(\S+)", *configuration),
        tree.match(r"\blibfabric-aws(?:-bin)?[_-](\d+\.\d+\.\d+)", _EFA_PACKAGES),
        *((name, path) for path, name in libraries.items() if name[0].isdigit() and tree.exists(path)),
    ]
    return next((found for found in versions if found[0]), (None, None))


def _verbs_devices(tree: FileTree) -> list[str]:
    return [f"infiniband/{name}" for name in tree.names("/dev/infiniband") if name.startswith("uverbs")]


def _shared_memory_bytes(tree: FileTree) -> int | None:
    """Size of `/dev/shm` by its mount option; None without one, where the kernel gives half the memory."""
    size = tree.match(r"^\S+ /dev/shm \S+ \S*?\bsize=(\d+[kmg]?)", "/proc/self/mounts", "/proc/mounts")[0]
    return int(size.rstrip("kmg")) << {"k": 10, "m": 20, "g": 30}.get(size[-1], 0) if size else None


def read_nccl_files(tree: FileTree, environ: Mapping[str, str], home: str) -> tuple[ConfigurationFile, ...]:
    """The files of variables that exist, the user's first; empty files are included.

    Source: `src/misc/param.cc` of NCCL (`initEnv`). NCCL reads `$NCCL_CONF_FILE` (from 2.23), or else
    `.nccl.conf` in the home folder, and then `/etc/nccl.conf`. Variables that are set keep their values.
    """
    own = environ.get("NCCL_CONF_FILE") or f"{home.rstrip('/')}/.nccl.conf"
    return tuple(
        ConfigurationFile(path, parse_variables(tree.unstripped_text(path) or ""))
        for path in (own, _MACHINE_FILE)
        if path.startswith("/") and tree.exists(path)
    )


def parse_variables(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs of name and value. Of a name given twice the first value counts, as NCCL never overwrites one."""
    variables: dict[str, str] = {}
    for _, name, value in variable_lines(text):
        variables.setdefault(name, value)
    return tuple(variables.items())


def variable_lines(text: str) -> Iterator[tuple[int, str, str]]:
    """Number, name and value of each line with a variable.

    As for NCCL, blanks and quotes around the equals sign belong to the name or the value, and only a line
    that begins with # is a comment.
    """
    for number, line in enumerate(text.split("\n"), 1):
        name, equals, value = line.partition("=")
        if equals and name and not line.startswith("#"):
            yield number, name, value


def effective_limit(limits: str | None, status: str | None, uid_map: str | None) -> str | None:
    """Limit of locked memory that has effect: `unlimited`, or bytes as decimal digits; None if unknown.

    The soft limit has no effect on a process with CAP_IPC_LOCK in the initial user namespace, such as one of
    root: the kernel tests `capable(CAP_IPC_LOCK)` before it refuses (`ib_umem_get` in
    drivers/infiniband/core/umem.c, `__account_locked_vm` in mm/util.c). It has effect on root of a container
    with a user namespace of its own, which has the capability only there.

    `limits`, `status`, `uid_map`: contents of these files in `/proc/self`; None if there is none.
    """
    found = re.search(rf"^Max locked memory\s+({UNLIMITED}|\d+)\s", limits or "", re.MULTILINE)
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)\s*$", status or "", re.MULTILINE)
    has_capability = effective is not None and bool(int(effective[1], 16) >> _CAP_IPC_LOCK & 1)
    # a kernel without user namespaces has no `uid_map`
    is_exempt = has_capability and (uid_map is None or uid_map.split() == _ALL_USERS)
    return None if found is None else UNLIMITED if is_exempt else found[1]


def limit_bytes(limit: str | None) -> int | None:
    """The limit as a number; None if it is unlimited or unknown."""
    return int(limit) if limit is not None and limit.isdecimal() else None
