"""`open` and `tensorboard`: a browser where there is a display, else a server and the tunnel to it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from typing import NoReturn

import pytest

import submit
from disttrain.errors import ConfigError
from disttrain.records.json_files import write_text
from jobs.cli import open as web_page
from jobs.cli import selection
from jobs.cli.open import directions, has_display, tunnel_command
from tests.support.fake_runs import fake_sweep
from tests.support.states import make_run
from tests.support.verbs import RUNS, ask

pytestmark = pytest.mark.usefixtures("cluster")
PAGE = RUNS / "a" / "report" / "report.html"
OVER_SSH = {"SSH_CONNECTION": "10.0.0.1 50000 10.0.0.9 2222", "DISPLAY": "localhost:10.0"}


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep with a report, on a machine without a display."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    make_run(RUNS, "a/n1")
    write_text(PAGE, "<p>the report</p>")


def test_a_forwarded_display_is_no_display() -> None:
    assert has_display({"DISPLAY": ":0"})
    assert has_display({"WAYLAND_DISPLAY": "wayland-0"})
    assert not has_display({})
    assert not has_display(OVER_SSH)


def test_the_tunnel_goes_to_the_address_that_the_user_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_page.getpass, "getuser", lambda: "ada")
    monkeypatch.setattr(web_page.socket, "getfqdn", lambda: "login1.example.org")
    assert tunnel_command(6006, {}) == "ssh -N -L 6006:localhost:6006 ada@login1.example.org"
    ssh = "ssh -N -p 2222 -L 6006:localhost:6006"
    assert tunnel_command(6006, OVER_SSH) == f"{ssh} ada@login1.example.org"
    monkeypatch.setattr(web_page.socket, "getfqdn", lambda: "localhost")
    assert tunnel_command(6006, OVER_SSH) == f"{ssh} ada@10.0.0.9"
    monkeypatch.setattr(web_page.socket, "gethostname", lambda: "login1")
    assert tunnel_command(6006, {}) == "ssh -N -L 6006:localhost:6006 ada@login1"


def test_the_tunnel_is_printed_without_a_display_alone() -> None:
    assert directions(8000, "report.html", {"DISPLAY": ":0"}) == [
        "open http://localhost:8000/report.html",
        "Ctrl-C ends the server",
    ]
    _, line, _ = directions(8000, "", {})
    assert line.startswith("from another machine, run there first: ssh -N -L 8000:localhost:8000 ")


def test_a_port_in_use_is_refused(sweep: None) -> None:
    with socket.create_server((web_page.LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port={port}: Address already in use"):
            web_page.choose_port(port)
        assert submit.main(["open", "a", "--port", str(port)]) == 2


def test_the_report_opens_in_a_browser(
    sweep: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    out = ask(capsys, "open a")
    assert out.startswith("report of a, written 20")
    assert "submit.py report a" in out
    assert opened == [PAGE.absolute().as_uri()]


def test_a_missing_report_is_written_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_sweep(RUNS, repeats=1)
    opened: list[str] = []
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    (sweep,) = selection.sweep_names(RUNS)
    page = RUNS / sweep / "report" / "report.html"
    assert ask(capsys, "open") == f"report of {sweep}: {page}\n", "the newest sweep"
    assert page.exists()
    assert opened == [page.absolute().as_uri()]


def test_without_a_display_the_report_is_served_until_ctrl_c(sweep: None) -> None:
    # in the background it may be ignored, which a process inherits
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, submit.__file__, "open", "a"], stdout=subprocess.PIPE, text=True
    )
    signal.signal(signal.SIGINT, before)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        found = re.fullmatch(r"open (http://localhost:\d+/report\.html)\n", lines[1])
        assert found, lines
        assert lines[2].startswith("from another machine, run there first: ssh -N -L ")
        with urllib.request.urlopen(found[1]) as reply:
            assert reply.read() == b"<p>the report</p>"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    finally:
        process.kill()
        process.communicate()


def replaced_by(monkeypatch: pytest.MonkeyPatch, command: str) -> list[str]:
    """The command that replaces the process of a command line."""
    commands: list[list[str]] = []

    def execv(path: str, command: list[str]) -> NoReturn:
        commands.append(command)
        raise SystemExit

    monkeypatch.setattr("os.execv", execv)
    with pytest.raises(SystemExit):
        submit.main(command.split())
    return commands[0]


def test_tensorboard_replaces_the_command(
    sweep: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert submit.main(["tensorboard", "a"]) == 2
    assert "no run of a has TensorBoard logs" in capsys.readouterr().err
    run = make_run(RUNS, "a/n2")
    run.attempt(0).tensorboard.mkdir(parents=True)
    command = replaced_by(monkeypatch, "tensorboard a")
    out, port = capsys.readouterr().out, command[-1]
    given = ["--logdir", str(RUNS / "a"), "--host", web_page.LOOPBACK, "--port", port]
    assert command == [sys.executable, "-m", "tensorboard.main", *given]
    assert "TensorBoard of a: 1 run with logs" in out
    assert f"open http://localhost:{port}/\n" in out


def test_a_running_sweep_may_have_no_logs_yet(
    sweep: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(RUNS, "a/n2", "running")
    replaced_by(monkeypatch, "tensorboard")
    assert "TensorBoard of a: 0 runs with logs" in capsys.readouterr().out


def test_without_tensorboard_one_line_says_how_to_install_it(
    sweep: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert submit.main(["tensorboard", "a"]) == 2
    error = capsys.readouterr().err
    assert error == f"error: TensorBoard is not installed: {sys.executable} -m pip install tensorboard\n"
