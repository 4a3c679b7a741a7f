"""`open`: show the report of a sweep in a browser, or serve it until Ctrl-C where there is no display.

`tensorboard` serves its page at a port and with directions of this module, too.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import getpass
import os
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs import PROGRAM
from jobs.cli import options

LOOPBACK = "127.0.0.1"

add_arguments = options.page


def run(args: argparse.Namespace) -> int:
    import time
    import webbrowser

    from jobs.cli import report
    from jobs.cli.formatting import runs_flag

    sweep = report.named_or_newest_sweep(args.runs, args.sweep)
    port = choose_port(args.port)
    page = args.runs / sweep / "report" / "report.html"
    if page.exists():
        written = time.strftime("%Y-%m-%d %H:%M", time.localtime(page.stat().st_mtime))
        renew = f"{PROGRAM} report {sweep}{runs_flag(args.runs)}"
        print(f"report of {sweep}, written {written}: {page}; `{renew}` renews it")
    else:
        page = report.write(args.runs, [sweep]).page
    if has_display(os.environ) and args.port is None and webbrowser.open(page.absolute().as_uri()):
        return 0
    serve(page, port)
    return 0


def has_display(environ: Mapping[str, str]) -> bool:
    """Whether a browser that starts here is one that the user sees. A forwarded X display is too slow."""
    if environ.get("SSH_CONNECTION"):
        return False
    return sys.platform == "darwin" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def choose_port(wanted: int | None) -> int:
    """`wanted`, or a free port for None, on the loopback interface. Raises `ConfigError` for one in use."""
    from disttrain.errors import ConfigError

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
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing for a request."""

    with ThreadingHTTPServer(
        (LOOPBACK, port), functools.partial(Handler, directory=str(page.parent))
    ) as server:
        print(*directions(port, page.name, os.environ), sep="\n", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
