"""Defects of a node that cost rate or correctness and that no environment variable mends: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from disttrain.records.nccl_names import permits
from jobs.fabric.choose_adapters import degraded, nearest_gpus, permitted_ports
from jobs.fabric.derive import adapter_list, verbs_in_use
from jobs.fabric.description import (
    ENOUGH_LOCKED_BYTES,
    Adapter,
    AdapterKind,
    Fabric,
    Gpu,
    PciDevice,
    Software,
)
from jobs.fabric.kernel_files import NEAR

NVLINK_REMEDY = "run `nvidia-smi nvlink --status` on the node; have the GPU reset or the node drained"


def defects(fabric: Fabric, settings: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """One line for each defect, with the remedy.

    `settings`: variables of NCCL that are set. Adapters that the user leaves out of `NCCL_IB_HCA` are not for
    computing.
    """
    settings = settings or {}
    listed = settings.get("NCCL_IB_HCA")
    return (
        *_lost_adapters(fabric, listed),
        *no_active_adapter(fabric, settings),
        *(() if listed is not None else _doubtful_adapters(fabric)),
        *_slow_slots(fabric),
        *(
            f"GPU {gpu.pci.address}: {text}: {NVLINK_REMEDY}"
            for gpu in fabric.gpus
            if (text := nvlink_defect(gpu, fabric.gpus)) is not None
        ),
        *_software(fabric, settings),
    )


def pcie_gbit_per_s(pci: PciDevice) -> float | None:
    """Rate of a PCIe link as it is now, without the overhead of packets.

    Lanes below 8 GT/s send 8 bits as 10; from 8 GT/s, 128 bits as 130.
    """
    if pci.link_gt_per_s is None or pci.lanes is None:
        return None
    coding = 128 / 130 if pci.link_gt_per_s >= 8 else 0.8
    return pci.link_gt_per_s * pci.lanes * coding


def _lost_adapters(fabric: Fabric, listed: str | None) -> Iterator[str]:
    """Adapters beside a GPU that are of the kind for computing and are not used, or that are degraded.

    Not used on purpose are those that a value of the user leaves out of `listed` (`NCCL_IB_HCA`), and a
    further function of a card, such as a port without a cable, where no card has more functions in use.
    """
    chosen = fabric.compute_adapters
    kinds = {adapter.kind for adapter in chosen}
    by_card = Counter(map(_card, chosen))
    by_user = "" if listed == adapter_list(verbs_in_use(fabric)) else listed or ""
    for adapter in fabric.excluded_adapters:
        if adapter.kind not in kinds or nearest_gpus(adapter, fabric.gpus)[0] not in NEAR:
            continue
        is_left_out = adapter.kind is AdapterKind.VERBS and not permits(by_user, adapter.name)
        if not is_left_out and by_card[_card(adapter)] < max(by_card.values()):
            yield f"{adapter.name}: {adapter.reason}"
    for adapter in fabric.compute_adapters:
        if (text := degraded(adapter, fabric.compute_adapters)) is not None:
            yield f"{adapter.name}: {text}"


def no_active_adapter(fabric: Fabric, settings: Mapping[str, str]) -> Iterator[str]:
    """A node with GPUs all of whose adapters are down: NCCL would use TCP without an error, or fail with
    `NCCL_NET=IB`."""
    down = [
        each
        for each in fabric.adapters
        if each.pci is not None and each.active_port is None and permitted_ports(each, settings)
    ]
    network, others = settings.get("NCCL_NET", "").casefold(), len(down) - 1
    if fabric.gpus and down and network != "socket" and not fabric.compute_adapters:
        end = "fails" if network == "ib" else "would use TCP"
        too = f"{others} other adapter{'s are' if others > 1 else ' is'} not active either"
        yield (
            f"no adapter is active, so NCCL {end}: {down[0].name}: {down[0].reason}"
            f"{f'; {too}' if others else ''}"
        )


def _card(adapter: Adapter) -> str:
    """PCI address without the function: the ports of a card are functions of one device."""
    return adapter.pci.address.rpartition(".")[0] if adapter.pci else adapter.name


def _doubtful_adapters(fabric: Fabric) -> Iterator[str]:
    """Adapters for computing that no PCIe switch ties to a GPU, where others are, or where they are more than
    the GPUs: some may be for storage."""
    chosen = [each for each in fabric.compute_adapters if each.kind is AdapterKind.VERBS]
    apart = [each.name for each in chosen if nearest_gpus(each, fabric.gpus)[0] not in NEAR]
    if fabric.gpus and apart and (len(apart) < len(chosen) or len(chosen) > len(fabric.gpus)):
        yield (
            f"{', '.join(apart)}: counted as for computing, although no PCIe switch shows a GPU beside "
            f"{'them' if len(apart) > 1 else 'it'}: if some are for storage, name the other adapters in "
            "NCCL_IB_HCA of the site profile"
        )


def _slow_slots(fabric: Fabric) -> Iterator[str]:
    for adapter in fabric.compute_adapters:
        rate = adapter.rate_gbit_per_s
        slot = pcie_gbit_per_s(adapter.pci) if adapter.pci else None
        if adapter.pci and rate and slot and slot < rate:
            width = f"{adapter.pci.link_gt_per_s:g} GT/s on {adapter.pci.lanes} lanes"
            yield (
                f"{adapter.name}: PCIe carries {slot:.0f} Gbit/s ({width}), less than its {rate:g} Gbit/s: "
                "check the slot and its settings"
            )


def nvlink_defect(gpu: Gpu, gpus: Iterable[Gpu]) -> str | None:
    """The number of active NVLinks of a GPU that should have more of them; `gpus` are those of its node.

    PCIe models have more links than their bridges connect: 12 of 18 on H100 NVL. So the other GPUs of the
    model show how many should be active; behind an NVSwitch, all of them should.
    """
    active = gpu.nvlinks_active
    if not gpu.nvlinks or not active:  # without any, there is no bridge or switch
        return None
    others = [each.nvlinks_active or 0 for each in gpus if each.name == gpu.name]
    usual = gpu.nvlinks if gpu.is_behind_nvswitch else max(others, default=active)
    return f"{active} of {usual} NVLinks are active" if active < usual else None


def _software(fabric: Fabric, settings: Mapping[str, str]) -> Iterator[str]:
    """Limits, devices, modules and plugins that the adapters for computing need."""
    software, kinds = fabric.software, {each.kind for each in fabric.compute_adapters}
    uses_verbs, limit = bool(kinds & {AdapterKind.VERBS, AdapterKind.EFA}), software.memory_lock_bytes
    if uses_verbs and limit is not None and limit < ENOUGH_LOCKED_BYTES:
        yield (
            f"locked memory is limited to {limit / 1024:g} KiB (/proc/self/limits), so adapters cannot "
            "register buffers: jobs need `ulimit -l unlimited`"
        )
    if uses_verbs and software.has_verbs_devices is False:
        yield "/dev/infiniband has no uverbs device, so NCCL finds no adapter: a container has to mount it"
    lacks = software.has_peermem is False and software.is_open_driver is False
    if fabric.gpus and AdapterKind.VERBS in kinds and lacks:
        yield (
            "no GPUDirect RDMA: neither the module nvidia_peermem nor NVIDIA's open driver, which DMA-BUF "
            "needs; data passes through the memory of the host"
        )
    if fabric.gpus and kinds & {AdapterKind.EFA, AdapterKind.CXI}:
        yield from missing_plugin(software, settings)


def missing_plugin(software: Software, settings: Mapping[str, str]) -> Iterator[str]:
    """The reason for which NCCL loads no network plugin, with the remedy. `NCCL_NET_PLUGIN` is not judged."""
    plugins = [each for each in software.nccl_plugins if each.kind == "net"]
    if not plugins:
        fact, remedy = "no network plugin of NCCL (aws-ofi-nccl)", "install it or load its module"
    else:
        path = plugins[0].path
        fact = f"NCCL's plugin {path} is not on the path of libraries"
        remedy = f"add {path.rpartition('/')[0]} to LD_LIBRARY_PATH"
    if not software.has_libraries:
        return
    if not settings.get("NCCL_NET_PLUGIN") and not any(each.is_reachable for each in plugins):
        yield f"{fact}, so NCCL would use TCP: {remedy}"
