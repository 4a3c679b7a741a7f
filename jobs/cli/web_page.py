"""Pages for a browser: whether this machine has a display, a free port, and the tunnel from elsewhere."""

from __future__ import annotations

import contextlib
import functools
import getpass
import http.server
import os
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from disttrain.errors import ConfigError

LOOPBACK = "127.0.0.1"


def has_display(environ: Mapping[str, str]) -> bool:
    """Whether a browser that starts here is one that the user sees. A forwarded X display is too slow."""
    if environ.get("SSH_CONNECTION"):
        return False
    return sys.platform == "darwin" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def choose_port(wanted: int | None) -> int:
    """`wanted`, or a free port for None, on the loopback interface. Raises `ConfigError` for one in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, wanted or 0))
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a port"
            raise ConfigError(f"--port={wanted}: {reason}; without --port, a free one is taken") from None
        return int(probe.getsockname()[1])


def directions(port: int, path: str, environ: Mapping[str, str]) -> list[str]:
    """Lines with the URL of a page that this machine serves, and the SSH tunnel to it without a display."""
    lines = [f"open http://localhost:{port}/{path}"]
    if not has_display(environ):
        lines.append(f"from another machine, run there first: {tunnel_command(port, environ)}")
    return [*lines, "Ctrl-C ends the server"]


def tunnel_command(port: int, environ: Mapping[str, str]) -> str:
    """The ssh command, for the user's own machine, that forwards its port to the same port here.

    Over SSH, the address and port are those that the user's client connected to, if this host has no name in
    a domain.
    """
    host = socket.getfqdn()
    _, _, address, ssh_port = (environ.get("SSH_CONNECTION", "").split() + [""] * 4)[:4]
    if "." not in host:
        host = address or socket.gethostname()
    option = ["-p", ssh_port] if ssh_port not in ("", "22") else []
    return shlex.join(["ssh", "-N", *option, "-L", f"{port}:localhost:{port}", f"{getpass.getuser()}@{host}"])


def serve(page: Path, port: int) -> None:
    """Serve the folder of the page to this machine until Ctrl-C."""
    handler = functools.partial(_QuietHandler, directory=str(page.parent))
    with http.server.ThreadingHTTPServer((LOOPBACK, port), handler) as server:
        print(*directions(port, page.name, os.environ), sep="\n", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing for a request."""
