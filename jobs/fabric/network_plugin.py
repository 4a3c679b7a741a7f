"""Network plugins of NCCL that a node has: whether NCCL finds one, and by which names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from disttrain.errors import nearest
from jobs.fabric.description import Plugin, Software

_OTHER_PLUGINS = re.compile(r"(?<![a-z])(ofi|gib)(?![a-z])", re.IGNORECASE)
"""Part of a path of the plugins aws-ofi-nccl and gIB (Google)."""


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


def missing_by(software: Software, value: str | None) -> MissingPlugin | None:
    """The reason for which NCCL loads no network plugin with this value of `NCCL_NET_PLUGIN`; None also for a
    path, which is not judged."""
    if value and "/" in value:
        return None
    names = plugin_names(value or "")
    return missing_named(software, names) if names else missing_plugin(software)


def missing_sharp_plugin(software: Software, value: str | None) -> str | None:
    """The reason for which NCCL loads no nccl-rdma-sharp-plugins with this value of `NCCL_NET_PLUGIN`.

    None also where detection cannot decide: for a path, for a file tree without libraries, and for a plugin
    of unknown make.
    """
    if (value and "/" in value) or not shows_libraries(software):
        return None
    names = plugin_names(value or "")
    named = [each for each in installed(software) if not names or any(is_named(each, name) for name in names)]
    candidates = [each for each in named if not _is_other_plugin(software, each)]
    if any(each.is_reachable for each in candidates):
        return None
    return unreachable(candidates[0]).fact if candidates else "NCCL of this node does not load it"


def _is_other_plugin(software: Software, plugin: Plugin) -> bool:
    """Whether a plugin is known to be aws-ofi-nccl or gIB."""
    is_only_one = len(installed(software)) == 1
    named = any(map(_OTHER_PLUGINS.search, (plugin.path, *plugin.names)))
    return named or (is_only_one and software.ofi_plugin_version is not None)


def plugin_names(value: str) -> list[str]:
    """The names in a value of `NCCL_NET_PLUGIN`."""
    return [name.strip() for name in value.split(",") if name.strip()]


def missing_named(software: Software, names: Sequence[str]) -> MissingPlugin | None:
    """The reason for which NCCL loads none of these plugins; None where it loads one."""
    if list(names) == ["none"]:
        return MissingPlugin("NCCL loads no plugin", "remove it")
    plugins = installed(software)
    found = [each for each in plugins if any(is_named(each, name) for name in names)]
    if not names or any(each.is_reachable for each in found) or not shows_libraries(software):
        return None
    if found:
        return unreachable(found[0])
    values = [value for each in plugins for value in suffixes(each)]
    has = f" (it has {', '.join(values)})" if values else ""
    return MissingPlugin(
        f"the node has no plugin {' or '.join(names)}{has}",
        f"remove it, or install the plugin{nearest(names[0], values)}",
    )


def shows_libraries(software: Software) -> bool:
    """False for a copied file tree without the folders of libraries."""
    return software.nccl_version is not None or bool(software.nccl_plugins)


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
