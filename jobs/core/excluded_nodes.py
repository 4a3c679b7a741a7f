"""The exclusion list of a runs folder: nodes that later submissions avoid until an entry expires.

The pre-flight of a job adds nodes at fault, and `disttrain nodes` shows and changes the list. A lock file
keeps changes of several jobs apart. Standard library only.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from disttrain.errors import ConfigError
from disttrain.records.json_files import CorruptFile, read_json, write_json
from jobs.core import journal
from jobs.core.lock import locked

FILE = ".excluded-nodes.json"
_LOCK = ".excluded-nodes.lock"
DEFAULT_HOURS = 24.0
"""Duration of an entry: a day, in which a site finds and repairs or drains the node."""


@dataclass(frozen=True)
class ExcludedNode:
    """One entry (`records.ExcludedNodeRecord`)."""

    host: str
    reason: str
    cluster: str | None
    by: str
    time: str
    expires: str

    @classmethod
    def until(
        cls, host: str, reason: str, *, cluster: str | None, by: str, hours: float = DEFAULT_HOURS
    ) -> ExcludedNode:
        """An entry from now on for so many hours."""
        expires = datetime.now(UTC) + timedelta(hours=hours)
        return cls(host, reason, cluster, by, journal.utc_now(), expires.isoformat(timespec="milliseconds"))

    def is_expired(self, now: datetime) -> bool:
        return datetime.fromisoformat(self.expires) <= now


def read(root: Path) -> list[ExcludedNode]:
    """The entries of a runs folder that have not expired, by host. Raises `ConfigError`."""
    return _unexpired(_entries(root))


def on_cluster(
    entries: Iterable[ExcludedNode],
    cluster: str | None,
    node_names: Callable[[], Collection[str] | None],
) -> list[ExcludedNode]:
    """The entries that hold on this cluster.

    An entry without a cluster was made where none answered. It holds on clusters that have a node of its
    name: a submission that excludes an unknown node is refused. Where `cluster` is None, which is unknown,
    this applies to all entries.

    `node_names`: names of the nodes, None if unknown. It is called only if there is such an entry.
    """
    found = [each for each in entries if cluster is None or each.cluster in (None, cluster)]
    is_certain = [cluster is not None and each.cluster is not None for each in found]
    names = None if all(is_certain) else node_names()
    return [
        each
        for each, certain in zip(found, is_certain, strict=True)
        if certain or names is None or each.host in names
    ]


def among(root: Path, cluster: str | None, hosts: Collection[str]) -> list[ExcludedNode]:
    """The entries for these nodes of a job on this cluster; none where the list cannot be read.

    Submissions are refused where it cannot be read.
    """
    try:
        entries = read(root)
    except (OSError, ConfigError):
        return []
    return [each for each in on_cluster(entries, cluster, lambda: hosts) if each.host in hosts]


def add(root: Path, node: ExcludedNode) -> None:
    """Add an entry, in place of an earlier one of the same host and cluster.

    Raises `OSError`, or `ConfigError` where the list cannot be read or the file system cannot lock.
    """

    def added(entries: Sequence[ExcludedNode]) -> list[ExcludedNode]:
        return [*(each for each in entries if not _same(each, node)), node]

    _change(root, added)


def remove(root: Path, names: Iterable[str] | None) -> list[ExcludedNode]:
    """Remove the entries of these hosts, or all; return the removed ones. Raises like `add`."""
    chosen = None if names is None else set(names)
    removed: list[ExcludedNode] = []

    def rest(entries: Sequence[ExcludedNode]) -> list[ExcludedNode]:
        removed.extend(each for each in entries if chosen is None or each.host in chosen)
        return [each for each in entries if each not in removed]

    _change(root, rest)
    return removed


def _same(one: ExcludedNode, other: ExcludedNode) -> bool:
    return (one.host, one.cluster) == (other.host, other.cluster)


def _change(root: Path, change: Callable[[Sequence[ExcludedNode]], list[ExcludedNode]]) -> None:
    """Write the result of `change` on the unexpired entries, under the lock."""
    with locked(root / _LOCK, fcntl.LOCK_EX):
        entries = sorted(change(read(root)), key=lambda each: each.host)
        write_json(root / FILE, {"schema_version": 1, "nodes": [asdict(each) for each in entries]})


def _entries(root: Path) -> list[ExcludedNode]:
    try:
        return [ExcludedNode(**each) for each in read_json(root / FILE)["nodes"]]
    except FileNotFoundError:
        return []
    except (CorruptFile, KeyError, TypeError) as error:
        raise ConfigError(f"{root / FILE} cannot be read ({error}); remove it to use all nodes") from None


def _unexpired(entries: Iterable[ExcludedNode]) -> list[ExcludedNode]:
    now = datetime.now(UTC)
    return sorted((each for each in entries if not each.is_expired(now)), key=lambda each: each.host)
