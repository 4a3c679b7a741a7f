"""Hold ports that a rendezvous may choose: `python -m tests.support.port_holder WAY`.

    range KEEP              holds all ports that a rendezvous is chosen from but KEEP of them
    after FILE [--reuse]    once FILE says which port was reserved, tries to listen on it, again and again;
                            `--reuse` asks for it as most servers do, with SO_REUSEADDR

Runs until its standard input ends and prints a line for each port that it holds. Its listeners accept no
connection. Standard library only.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import sys
import time
from pathlib import Path

from jobs.node import rendezvous


def hold_range(keep: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    ports = rendezvous.port_range()
    held = []
    for port in ports[: len(ports) - keep]:
        holder = socket.socket()
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # over connections just closed
        holder.bind(("", port))
        holder.listen()
        held.append(holder)
    print(f"free {ports[len(ports) - keep]}-{ports[-1]}" if keep else "free none", flush=True)
    sys.stdin.read()


def take_after(file: Path, reuse: bool) -> None:
    while not file.exists():
        time.sleep(0.001)
    port, tries = json.loads(file.read_text())["port"], 0
    print(f"sees {port}", flush=True)
    while not select.select([sys.stdin], [], [], 0.001)[0]:
        holder = socket.socket()
        if reuse:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tries += 1
        try:
            holder.bind(("", port))
            holder.listen()
        except OSError:
            holder.close()
            continue
        print(f"has {port}", flush=True)
        sys.stdin.read()
        return
    print(f"refused {tries} times", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "range":
        hold_range(int(sys.argv[2]))
    else:
        take_after(Path(sys.argv[2]), "--reuse" in sys.argv)
