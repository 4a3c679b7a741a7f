"""Network plugins of NCCL that a node has: whether NCCL finds one, and by which names."""

from __future__ import annotations

from typing import NamedTuple

from jobs.fabric.description import Plugin, Software


class MissingPlugin(NamedTuple):
    """The reason for which NCCL loads no network plugin, and the remedy."""

    fact: str
    remedy: str


def installed(software: Software) -> list[Plugin]:
    """The network plugins of the node, also those that the dynamic linker does not find."""
    return [plugin for plugin in software.nccl_plugins if plugin.kind == "net"]


def missing_plugin(software: Software) -> MissingPlugin | None:
    """None where NCCL finds a network plugin."""
    plugins = installed(software)
    if any(plugin.is_reachable for plugin in plugins):
        return None
    if plugins:
        return unreachable(plugins[0])
    return MissingPlugin("no network plugin of NCCL (aws-ofi-nccl)", "install it or load its module")


def unreachable(plugin: Plugin) -> MissingPlugin:
    """The text for a plugin in a folder that the dynamic linker does not search."""
    folder = plugin.path.rpartition("/")[0]
    return MissingPlugin(
        f"NCCL's plugin {plugin.path} is not on the path of libraries", f"add {folder} to LD_LIBRARY_PATH"
    )


def is_named(plugin: Plugin, name: str) -> bool:
    """Whether NCCL loads it by a value of `NCCL_NET_PLUGIN`: a file, or its part after `libnccl-net-`."""
    stems = {name.partition(".so")[0], f"libnccl-net-{name}"}
    return any(file.partition(".so")[0] in stems for file in plugin.names)


def suffixes(plugin: Plugin) -> list[str]:
    """Values of `NCCL_NET_PLUGIN` that choose a plugin: `ofi` for `libnccl-net-ofi.so`, else the file."""
    return [file.partition(".so")[0].removeprefix("libnccl-net-") for file in plugin.names]
