"""Links and addresses: a bridge in the head, a veth pair to each node and one to this machine.

`ip -batch` and `tc -batch` take many commands in one process, since each process start costs milliseconds.
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
_HEAD_PORT_TO_MACHINE = "machine"
_LINK_PREFIX = "disttrain"
_MAX_SUBNETS = 100
_MIN_BURST_BYTES = 128 * 1024
"""Two segments of the maximum TSO size (64 KiB), so that tbf does not split them."""


class NetworkError(RuntimeError):
    """An `ip` or `tc` command failed; the message is one line."""


def run_batch(program: str, commands: Sequence[str]) -> None:
    """Run commands in one `ip` or `tc` process. Raises `NetworkError` at the first that fails."""
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
    """Link this machine to the network namespace of process `pid`, on a subnet without a route here.

    The interface name contains the subnet's number. Interface names are unique, so the kernel refuses the
    second of two clusters that choose the same subnet. The link is removed with the namespace.
    """
    routed = _routed_subnets()
    refused = ""
    for number in range(_MAX_SUBNETS):
        subnet = Subnet(number)
        if any(ipaddress.ip_network(subnet.cidr).overlaps(other) for other in routed):
            continue
        name = interface_on_machine(subnet)
        try:
            run_batch("ip", [f"link add {name} type veth peer name {_HEAD_PORT_TO_MACHINE} netns {pid}"])
        except NetworkError as error:
            if "File exists" not in str(error):
                raise
            refused = str(error)
            continue
        run_batch("ip", [f"address add {subnet.machine}/24 dev {name}", f"link set {name} up"])
        return subnet
    raise NetworkError(f"no free subnet among {_MAX_SUBNETS} from {Subnet(0).cidr} on {refused}".strip())


def interface_on_machine(subnet: Subnet) -> str:
    return f"{_LINK_PREFIX}{subnet.number}"


def unlink_from_machine(subnet: Subnet) -> None:
    """Delete the link now: the kernel removes a namespace's links with a delay."""
    with contextlib.suppress(NetworkError):
        run_batch("ip", [f"link delete {interface_on_machine(subnet)}"])


def _routed_subnets() -> list[ipaddress.IPv4Network]:
    listing = subprocess.run(
        ["ip", "-json", "-4", "route", "show", "table", "main"], capture_output=True, text=True, check=False
    )
    found = []
    for route in json.loads(listing.stdout or "[]"):
        if route["dst"] != "default":
            found.append(ipaddress.ip_network(route["dst"], strict=False))
    return [network for network in found if isinstance(network, ipaddress.IPv4Network)]


def head_commands(subnet: Subnet) -> list[str]:
    """`ip` commands in the head: the bridge, with the link to this machine as its first port."""
    return [
        "link set lo up",
        f"link add {BRIDGE} type bridge",
        f"address add {subnet.head}/24 dev {BRIDGE}",
        f"link set {BRIDGE} up",
        f"link set {_HEAD_PORT_TO_MACHINE} master {BRIDGE}",
        f"link set {_HEAD_PORT_TO_MACHINE} up",
    ]


def bridge_port(number: int) -> str:
    """Interface of the bridge's port to a node; numbers start at 1."""
    return f"node{number}"


def bridge_port_commands(number: int, pid: int) -> list[str]:
    """`ip` commands in the head: a link to the node whose namespace init is `pid`."""
    return [
        f"link add {bridge_port(number)} type veth peer name {NODE_INTERFACE} netns {pid}",
        f"link set {bridge_port(number)} master {BRIDGE}",
        f"link set {bridge_port(number)} up",
    ]


def node_commands(address: str) -> list[str]:
    """`ip` commands in a node."""
    return [
        "link set lo up",
        f"address add {address}/24 dev {NODE_INTERFACE}",
        f"link set {NODE_INTERFACE} up",
    ]


def limit_rate(interface: str, bits_per_s: int | None) -> None:
    """Limit the egress rate of an interface of this namespace; None leaves it unshaped."""
    commands = shaping_commands(interface, bits_per_s)
    if commands:
        run_batch("tc", commands)


def shaping_commands(interface: str, bits_per_s: int | None) -> list[str]:
    """`tc` commands that limit the egress rate of an interface. Both ends of a link need them."""
    if bits_per_s is None:
        return []
    burst_bytes = max(_MIN_BURST_BYTES, bits_per_s // 8 // 1000)
    return [f"qdisc add dev {interface} root tbf rate {bits_per_s}bit burst {burst_bytes} latency 50ms"]
