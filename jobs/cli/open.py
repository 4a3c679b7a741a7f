"""`open`: show the report of a sweep in a browser, or serve it until Ctrl-C where there is no display."""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import os
import time
import webbrowser
from pathlib import Path
from typing import Any

from jobs.cli import report, run_lookup, web_page
from jobs.cli.formatting import runs_flag


def run(args: argparse.Namespace) -> int:
    sweep = run_lookup.find_sweep(args.runs, args.sweep) if args.sweep else report.newest_sweep(args.runs)
    port = web_page.choose_port(args.port)
    page = args.runs / sweep / "report" / "report.html"
    if page.exists():
        written = time.strftime("%Y-%m-%d %H:%M", time.localtime(page.stat().st_mtime))
        renew = f"submit.py report {sweep}{runs_flag(args.runs)}"
        print(f"report of {sweep}, written {written}: {page}; `{renew}` renews it")
    else:
        page = report.write(args.runs, [sweep]).page
    if web_page.has_display(os.environ) and args.port is None and webbrowser.open(page.absolute().as_uri()):
        return 0
    _serve(page, port)
    return 0


def _serve(page: Path, port: int) -> None:
    """Serve the folder of the page to this machine until Ctrl-C."""
    handler = functools.partial(_QuietHandler, directory=str(page.parent))
    with http.server.ThreadingHTTPServer((web_page.LOOPBACK, port), handler) as server:
        print(*web_page.directions(port, page.name, os.environ), sep="\n", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


class _QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing for a request."""
