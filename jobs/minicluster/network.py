"""Links and addresses: a bridge at the head, a veth pair to each node and one to this machine.

The commands are given to `ip -batch` and `tc -batch`, many at a time: each start costs milliseconds.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import subprocess
from collections.abc import Sequence

from jobs.minicluster.config import Subnet

BRIDGE = "br0"
NODE_INTERFACE = "eth0"
_HEAD_END = "machine"
_LINK_PREFIX = "disttrain"
_SUBNETS = 100
_MIN_BURST_BYTES = 128 * 1024
"""Two of the largest segments that a network card is handed, so that tbf need not cut them up."""


class NetworkError(RuntimeError):
    """A link could not be made; the message is one line."""


def run(program: str, commands: Sequence[str]) -> None:
    """Give commands to `ip` or `tc`. Raises `NetworkError` at the first that is refused."""
    done = subprocess.run(
        [program, "-batch", "-"],
        input="\n".join(commands) + "\n",
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise NetworkError(f"{program}: {' '.join(done.stderr.split())} (of: {'; '.join(commands)})")


def link_to_machine(pid: int) -> Subnet:
    """Join this machine to the namespace of process `pid` by a link, on a subnet that nobody here uses.

    The link's name holds the subnet's number, and no two links have one name: so the kernel decides when
    two clusters want the same subnet. It vanishes with the namespace.
    """
    taken = _subnets_in_use()
    refused = ""
    for number in range(_SUBNETS):
        subnet = Subnet(number)
        if any(ipaddress.ip_network(subnet.cidr).overlaps(other) for other in taken):
            continue
        name = interface_on_machine(subnet)
        try:
            run("ip", [f"link add {name} type veth peer name {_HEAD_END} netns {pid}"])
        except NetworkError as error:
            if "File exists" not in str(error):
                raise
            refused = str(error)
            continue
        run("ip", [f"address add {subnet.machine}/24 dev {name}", f"link set {name} up"])
        return subnet
    raise NetworkError(f"no free subnet among {_SUBNETS} from {Subnet(0).cidr} on {refused}".strip())


def interface_on_machine(subnet: Subnet) -> str:
    return f"{_LINK_PREFIX}{subnet.number}"


def unlink_from_machine(subnet: Subnet) -> None:
    """Take the link away at once, rather than when the kernel gets round to it."""
    with contextlib.suppress(NetworkError):
        run("ip", [f"link delete {interface_on_machine(subnet)}"])


def _subnets_in_use() -> list[ipaddress.IPv4Network]:
    listing = subprocess.run(
        ["ip", "-json", "-4", "route", "show", "table", "main"], capture_output=True, text=True, check=False
    )
    found = []
    for route in json.loads(listing.stdout or "[]"):
        if route["dst"] != "default":
            found.append(ipaddress.ip_network(route["dst"], strict=False))
    return [network for network in found if isinstance(network, ipaddress.IPv4Network)]


def head_commands(subnet: Subnet) -> list[str]:
    """`ip` commands at the head: the bridge, with the link to this machine as its first port."""
    return [
        "link set lo up",
        f"link add {BRIDGE} type bridge",
        f"address add {subnet.head}/24 dev {BRIDGE}",
        f"link set {BRIDGE} up",
        f"link set {_HEAD_END} master {BRIDGE}",
        f"link set {_HEAD_END} up",
    ]


def port(number: int) -> str:
    """The bridge's port to node 1, 2, ..."""
    return f"node{number}"


def port_commands(number: int, pid: int) -> list[str]:
    """`ip` commands at the head: a link to the node whose first process is `pid`."""
    return [
        f"link add {port(number)} type veth peer name {NODE_INTERFACE} netns {pid}",
        f"link set {port(number)} master {BRIDGE}",
        f"link set {port(number)} up",
    ]


def node_commands(address: str) -> list[str]:
    """`ip` commands on a node."""
    return [
        "link set lo up",
        f"address add {address}/24 dev {NODE_INTERFACE}",
        f"link set {NODE_INTERFACE} up",
    ]


def shaping(interface: str, bits_per_s: int | None) -> list[str]:
    """`tc` commands that hold what leaves an interface to a rate: at both ends of a link, both directions."""
    if bits_per_s is None:
        return []
    burst_bytes = max(_MIN_BURST_BYTES, bits_per_s // 8 // 1000)
    return [f"qdisc add dev {interface} root tbf rate {bits_per_s}bit burst {burst_bytes} latency 50ms"]
