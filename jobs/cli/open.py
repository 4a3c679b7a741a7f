"""`open`: show the report of a sweep in a browser, or serve it until Ctrl-C where there is no display."""

from __future__ import annotations

import argparse

from jobs.cli import options

add_arguments = options.page


def run(args: argparse.Namespace) -> int:
    import os
    import time
    import webbrowser

    from jobs.cli import report, selection, web_page
    from jobs.cli.formatting import runs_flag

    sweep = selection.find_sweep(args.runs, args.sweep) if args.sweep else report.newest_sweep(args.runs)
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
    web_page.serve(page, port)
    return 0
