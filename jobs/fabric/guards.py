"""Combinations of values that are known to corrupt data, to deadlock, or to fail. One function each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jobs.fabric.derive import (
    CORRUPTION_REPORT,
    PLUGIN_GUIDE,
    USER_GUIDE,
    has_old_efa_plugin,
    reorders_ll128,
)
from jobs.fabric.description import FabricKind
from jobs.fabric.findings import Finding, FindingKind, FindingSeverity, LintContext
from jobs.fabric.integers import integer_prefix, is_nonzero
from jobs.fabric.registry import is_off, parse_version
from jobs.fabric.slingshot import SLINGSHOT_EAGER, SLINGSHOT_GUIDE
from jobs.fabric.transport import TRANSPORT

_FIRST_WITH_C2C_LINES = "2.27.3"
_FIRST_WITH_PROTOCOLS = "2.5.6"
_FIRST_STRICT = "2.24"
_MAX_SOCKETS = 64
_WITHOUT_MEMORY_HOOKS = ("userfaultfd", "kdreg2")

Rule = Callable[[LintContext], Iterator[Finding]]


def _at_least(version: str | None, first: str) -> bool:
    """Whether a version is `first` or newer; an unknown one counts as new."""
    return version is None or parse_version(version) >= parse_version(first)


def allows_ll128(protocols: str | None) -> bool:
    """Whether a value of `NCCL_PROTO` lets NCCL use LL128 in some function; None is NCCL's own choice."""
    if protocols is None:
        return True
    for part in protocols.split(";"):
        names = part.rpartition(":")[2].strip()
        listed = "ll128" in [name.strip().casefold() for name in names.removeprefix("^").split(",")]
        if names and listed is not names.startswith("^"):
            return True
    return False


def ll128_over_c2c(context: LintContext) -> Iterator[Finding]:
    """GH200 with Slingshot: https://github.com/NVIDIA/nccl/issues/2001."""
    fabric, version = context.fabric, context.nccl_version
    if fabric is None or context.nodes == 1 or not reorders_ll128(fabric):
        return
    protocols = context.value("NCCL_PROTO")
    forced = protocols is not None and not protocols.startswith("^") and allows_ll128(protocols)
    is_on = is_nonzero(context.value("NCCL_LL128_C2C"), default=True)
    by_default = is_on and _at_least(version, _FIRST_WITH_C2C_LINES)
    if forced or (by_default and allows_ll128(protocols)):
        name = "NCCL_PROTO" if forced else "NCCL_LL128_C2C"
        yield context.finding(
            FindingSeverity.ERROR, FindingKind.CORRUPTION, name,
            "LL128 between nodes corrupts data on GH200 with Slingshot; set NCCL_LL128_C2C=0 "
            "and leave NCCL_PROTO unset, or set NCCL_PROTO=^LL128", CORRUPTION_REPORT,
        )  # fmt: skip


def forced_ll128(context: LintContext) -> Iterator[Finding]:
    """NVIDIA's user guide: LL128 on a platform that does not support it corrupts data."""
    protocols = context.value("NCCL_PROTO")
    if protocols is None or protocols.startswith("^") or not allows_ll128(protocols):
        return
    if context.fabric is not None and reorders_ll128(context.fabric):
        return  # `ll128_over_c2c` reports it
    known_good = context.fabric is not None and any(link.is_nvlink for link in context.fabric.gpu_links)
    severity = FindingSeverity.WARNING if known_good else FindingSeverity.ERROR
    yield context.finding(
        severity, FindingKind.CORRUPTION, "NCCL_PROTO",
        "a list with LL128 forces it also where the hardware does not keep its order, which corrupts data; "
        "remove it, or exclude protocols with ^", f"{USER_GUIDE}#nccl-proto",
    )  # fmt: skip


def old_efa_plugin(context: LintContext) -> Iterator[Finding]:
    """aws-ofi-nccl up to 1.5.0 delivers only the protocol Simple correctly."""
    fabric, protocols = context.fabric, (context.value("NCCL_PROTO") or "").casefold()
    if fabric is None or context.nodes == 1 or not has_old_efa_plugin(fabric) or protocols == "simple":
        return
    if not _at_least(context.nccl_version, _FIRST_WITH_PROTOCOLS):
        return
    yield context.finding(
        FindingSeverity.ERROR, FindingKind.CORRUPTION, "NCCL_PROTO",
        f"aws-ofi-nccl {fabric.software.ofi_plugin_version} may corrupt data with other protocols than "
        "Simple; install 1.7 or newer, or set NCCL_PROTO=Simple", PLUGIN_GUIDE,
    )  # fmt: skip


def rendezvous_protocol(context: LintContext) -> Iterator[Finding]:
    """Slingshot: alt_read and `srun --network=disable_rdzv_get` belong together."""
    protocol = context.value("FI_CXI_RDZV_PROTO")
    if context.srun_network is None:
        return
    disabled = "disable_rdzv_get" in context.srun_network
    if protocol == "alt_read" and not disabled:
        message = "alt_read hangs without `srun --network=disable_rdzv_get`; add it to the profile's srun"
    elif disabled and protocol != "alt_read":
        message = "`srun --network=disable_rdzv_get` needs FI_CXI_RDZV_PROTO=alt_read; set both or neither"
    else:
        return
    yield context.finding(
        FindingSeverity.ERROR, FindingKind.DEADLOCK, "FI_CXI_RDZV_PROTO", message, SLINGSHOT_GUIDE
    )


def slingshot_memory(context: LintContext) -> Iterator[Finding]:
    """Slingshot: memory monitors and host registration that deadlock, thresholds that corrupt."""
    fabric = context.fabric
    if fabric is None or fabric.kind is not FabricKind.SLINGSHOT or context.nodes == 1:
        return
    if is_off(context.value("FI_CXI_DISABLE_HOST_REGISTER") or ""):
        yield context.finding(
            FindingSeverity.ERROR, FindingKind.DEADLOCK, "FI_CXI_DISABLE_HOST_REGISTER",
            "registering host memory with CUDA may deadlock; set it to 1, or remove it", SLINGSHOT_GUIDE,
        )  # fmt: skip
    monitor = context.value("FI_MR_CACHE_MONITOR")
    if monitor is not None and monitor not in _WITHOUT_MEMORY_HOOKS:
        yield context.finding(
            FindingSeverity.ERROR, FindingKind.DEADLOCK, "FI_MR_CACHE_MONITOR",
            f"{monitor} may deadlock with NCCL; set userfaultfd, or remove it", SLINGSHOT_GUIDE,
        )  # fmt: skip
    for name in ("FI_CXI_RDZV_THRESHOLD", "FI_CXI_RDZV_GET_MIN"):
        if fabric.has_c2c and is_nonzero(context.value(name)):
            yield context.finding(
                FindingSeverity.ERROR, FindingKind.CORRUPTION, name,
                "eager messages are copied by GDRCopy and may arrive corrupt on GH200; set it to 0",
                SLINGSHOT_EAGER,
            )  # fmt: skip


def watchdog(context: LintContext) -> Iterator[Finding]:
    """torch: blocking waits run no watchdog thread."""
    for name in ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT"):
        value = context.value(name)
        if value is not None and not is_off(value):
            yield context.finding(
                FindingSeverity.ERROR, FindingKind.DEADLOCK, name,
                "torch runs no watchdog with blocking waits, so a hang never ends; remove it",
            )  # fmt: skip


def network_on_one_node(context: LintContext) -> Iterator[Finding]:
    """NCCL fails on one node if the network that it is told to use is missing."""
    if context.nodes == 1 and context.value("NCCL_NET") is not None:
        yield context.finding(
            FindingSeverity.ERROR, FindingKind.CONFLICT, "NCCL_NET",
            "a job of one node needs no network, and fails where this one is missing; set it only for jobs "
            "of several nodes",
        )  # fmt: skip


def two_ways(context: LintContext) -> Iterator[Finding]:
    """Pairs of variables of which one should be set."""
    pairs = [("NCCL_NET_PLUGIN", "NCCL_NET", "NCCL fails where the plugin has no network of this name")]
    limits = ((f"NCCL_{bound}_NCHANNELS", f"NCCL_{bound}_CTAS") for bound in ("MIN", "MAX"))
    pairs += [(old, new, "the more restrictive one holds") for old, new in limits]
    for first, second, why in pairs:
        if context.value(first) not in (None, "none") and context.value(second) is not None:
            yield context.finding(
                FindingSeverity.ERROR if second == "NCCL_NET" else FindingSeverity.WARNING,
                FindingKind.CONFLICT, first, f"{second} is set as well: {why}; remove one of them",
            )  # fmt: skip


def switched_off(context: LintContext) -> Iterator[Finding]:
    """Variables of a transport that another variable switches off."""
    names = (each for each in context.settings if each.startswith("NCCL_IB_") and each != "NCCL_IB_DISABLE")
    ib = [each for each in names if _is_read(context, each)]
    p2p = [each for each in ("NCCL_P2P_LEVEL", "NCCL_P2P_READ_ENABLE") if each in context.settings]
    for name, unused in (("NCCL_IB_DISABLE", ib), ("NCCL_P2P_DISABLE", p2p)):
        if unused and is_nonzero(context.value(name)):
            yield context.finding(
                FindingSeverity.WARNING, FindingKind.CONFLICT, name,
                f"{name}=1 makes NCCL ignore {', '.join(unused)}; remove {name}, or {', '.join(unused)}",
            )  # fmt: skip
    if is_nonzero(context.value("NCCL_IB_DISABLE")) and (context.value("NCCL_NET") or "").casefold() == "ib":
        yield context.finding(
            FindingSeverity.ERROR, FindingKind.CONFLICT, "NCCL_NET",
            "NCCL_IB_DISABLE switches this network off, so NCCL fails; remove one of them",
        )  # fmt: skip


def _is_read(context: LintContext, name: str) -> bool:
    """Whether the version of NCCL, or the newest one, reads a variable."""
    variable = context.known.get(name)
    if variable is None or variable.kind == "dead":
        return False
    version = context.nccl_version
    return variable.until is None if version is None else variable.is_read_by(version)


def bounds(context: LintContext) -> Iterator[Finding]:
    """A smallest number of channels above the largest one."""
    for unit in ("CTAS", "NCHANNELS"):
        least, most = (
            integer_prefix(context.value(f"NCCL_{bound}_{unit}") or "") for bound in ("MIN", "MAX")
        )
        if least and most and least[0] > most[0]:
            yield context.finding(
                FindingSeverity.WARNING, FindingKind.CONFLICT, f"NCCL_MIN_{unit}",
                f"it is above NCCL_MAX_{unit}={most[0]}; remove one of them",
            )  # fmt: skip


def sockets(context: LintContext) -> Iterator[Finding]:
    """NCCL refuses more than 64 TCP connections for a connection of two ranks."""
    names = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD")
    threads, each = (integer_prefix(context.value(name) or "") for name in names)
    if threads and each and threads[0] * each[0] > _MAX_SOCKETS:
        yield context.finding(
            FindingSeverity.ERROR, FindingKind.CONFLICT, "NCCL_SOCKET_NTHREADS",
            f"{threads[0]} threads x {each[0]} sockets exceed {_MAX_SOCKETS}; 4 and 4 suit 100 Gbit/s",
        )  # fmt: skip


def algorithms(context: LintContext) -> Iterator[Finding]:
    """Since NCCL 2.24, a function whose algorithms are all excluded fails."""
    value = context.value("NCCL_ALGO")
    if value is None or value.startswith("^") or not _at_least(context.nccl_version, _FIRST_STRICT):
        return
    known = context.known.get("NCCL_ALGO")
    if known is not None and not known.accepts(value):
        return  # out of range, which the registry's rule reports
    first = value.split(";")[0]
    if ":" not in first and "ring" not in [name.strip().casefold() for name in first.split(",")]:
        yield context.finding(
            FindingSeverity.ERROR, FindingKind.CONFLICT, "NCCL_ALGO",
            "functions without these algorithms, such as all-gather, fail since NCCL 2.24; add Ring, or "
            f"restrict it: allreduce:{first}",
        )  # fmt: skip


def hardware_queues(context: LintContext) -> Iterator[Finding]:
    """One hardware queue serializes communication and computation of DDP and FSDP."""
    if context.value("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        yield context.finding(
            FindingSeverity.WARNING, FindingKind.CONFLICT, "CUDA_DEVICE_MAX_CONNECTIONS",
            "1 prevents the overlap of communication with computation in DDP and FSDP; remove it, unless "
            "tensor parallelism needs it",
        )  # fmt: skip


def log_file(context: LintContext) -> Iterator[Finding]:
    """Processes overwrite each other's log where its name does not differ."""
    path = context.value("NCCL_DEBUG_FILE")
    if path and not path.startswith("/dev/") and "%p" not in path:
        yield context.finding(
            FindingSeverity.WARNING, FindingKind.CONFLICT, "NCCL_DEBUG_FILE",
            "all processes write the same file, which loses lines; add %h.%p to its name",
        )  # fmt: skip


GUARDS: tuple[Rule, ...] = (
    ll128_over_c2c,
    forced_ll128,
    old_efa_plugin,
    rendezvous_protocol,
    slingshot_memory,
    watchdog,
    network_on_one_node,
    two_ways,
    switched_off,
    bounds,
    sockets,
    algorithms,
    hardware_queues,
    log_file,
    *TRANSPORT,
)
