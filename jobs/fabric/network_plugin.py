"""Network plugins of NCCL that a node has: whether NCCL finds one."""

from __future__ import annotations

from typing import NamedTuple

from jobs.fabric.description import Plugin, Software


class MissingPlugin(NamedTuple):
    """The reason for which NCCL loads no network plugin, and the remedy."""

    fact: str
    remedy: str


def missing_by(software: Software, value: str | None) -> MissingPlugin | None:
    """The reason for which NCCL loads no network plugin with this value of `NCCL_NET_PLUGIN`; None also for a
    path, which is not judged, and for a name in a file tree without libraries."""
    names = [name.strip() for name in (value or "").split(",") if name.strip()]
    if names == ["none"]:
        return MissingPlugin("NCCL loads no plugin", "remove it")
    plugins = [
        each
        for each in software.nccl_plugins
        if each.kind == "net" and (not names or any(_is_named(each, name) for name in names))
    ]
    if any(each.is_reachable for each in plugins) or "/" in (value or ""):
        return None
    if plugins:
        folder = plugins[0].path.rpartition("/")[0]
        fact = f"NCCL's plugin {plugins[0].path} is not on the path of libraries"
        return MissingPlugin(fact, f"add {folder} to LD_LIBRARY_PATH")
    if not names:
        return MissingPlugin("no network plugin of NCCL (aws-ofi-nccl)", "install it or load its module")
    if software.nccl_version is None and not software.nccl_plugins:
        return None
    files = [file.partition(".so")[0] for each in software.nccl_plugins for file in each.names]
    has = f" (it has {', '.join(files)})" if files else ""
    return MissingPlugin(
        f"the node has no plugin {' or '.join(names)}{has}", "remove it, or install the plugin"
    )


def _is_named(plugin: Plugin, name: str) -> bool:
    """Whether NCCL loads it by a value of `NCCL_NET_PLUGIN`: a file, or its part after `libnccl-net-`."""
    stems = {name.partition(".so")[0], f"libnccl-net-{name}"}
    return any(file.partition(".so")[0] in stems for file in plugin.names)
