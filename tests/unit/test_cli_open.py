"""`open` and `tensorboard`: a browser where there is a display, else a server and the tunnel to it."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from typing import Any, NoReturn

import pytest

import submit
from disttrain.records.json_files import write_text
from jobs.cli import open as web_page
from jobs.cli.open import directions, has_display, tunnel_command
from tests.support.fake_runs import fake_sweep
from tests.support.states import make_run
from tests.support.verbs import RUNS, ask

pytestmark = pytest.mark.usefixtures("cluster")
PAGE = RUNS / "a" / "report" / "report.html"
OVER_SSH = {"SSH_CONNECTION": "10.0.0.1 50000 10.0.0.9 2222", "DISPLAY": "localhost:10.0"}


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that a browser opened, on a machine without a display."""
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    urls: list[str] = []

    def opens(url: str) -> bool:
        urls.append(url)
        return True

    monkeypatch.setattr("webbrowser.open", opens)
    return urls


@pytest.fixture
def sweep() -> None:
    """A sweep with a report."""
    make_run(RUNS, "a/n1")
    write_text(PAGE, "<p>the report</p>")


@pytest.mark.parametrize(
    ("environ", "display"),
    [({"DISPLAY": ":0"}, True), ({"WAYLAND_DISPLAY": "wayland-0"}, True), ({}, False), (OVER_SSH, False)],
)
def test_without_a_display_the_tunnel_is_printed_and_a_forwarded_one_is_none(
    environ: dict[str, str], display: bool
) -> None:
    assert has_display(environ) is display
    first, *_, last = lines = directions(8000, "report.html", environ)
    assert (first, last) == ("open http://localhost:8000/report.html", "Ctrl-C ends the server")
    assert any("ssh -N" in line and "-L 8000:localhost:8000 " in line for line in lines) is not display


@pytest.mark.parametrize(
    ("name", "environ", "expected"),
    [
        ("login1.example.org", {}, "-L 6006:localhost:6006 ada@login1.example.org"),
        ("login1.example.org", OVER_SSH, "-p 2222 -L 6006:localhost:6006 ada@login1.example.org"),
        ("localhost", OVER_SSH, "-p 2222 -L 6006:localhost:6006 ada@10.0.0.9"),
        ("localhost", {}, "-L 6006:localhost:6006 ada@login1"),
    ],
)
def test_the_tunnel_goes_to_the_address_that_the_user_knows(
    name: str, environ: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    monkeypatch.setattr("socket.getfqdn", lambda: name)
    monkeypatch.setattr("socket.gethostname", lambda: "login1")
    assert tunnel_command(6006, environ) == f"ssh -N {expected}"


def test_a_port_in_use_is_refused(sweep: None, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server((web_page.LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        assert submit.main(["open", "a", "--port", str(port)]) == 2
        assert f"--port={port}: Address already in use" in capsys.readouterr().err
    assert submit.main(["open", "a", "--port", "65536"]) == 2
    assert "not a port" in capsys.readouterr().err


def test_the_report_opens_in_a_browser_and_a_missing_one_is_written_first(
    sweep: None, opened: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    assert ask(capsys, "open a").startswith("report of a, written 20")
    fake_sweep(RUNS, "new", nodes=(1,), repeats=1)
    page = RUNS / "new" / "report" / "report.html"
    assert ask(capsys, "open") == f"report of new: {page}\n", "the newest sweep"
    assert page.exists()
    assert opened == [PAGE.absolute().as_uri(), page.absolute().as_uri()]


def test_a_browser_is_not_opened_where_a_port_is_given(
    sweep: None, opened: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []

    def interrupted(server: Any) -> NoReturn:
        served.append(server.server_address[0])
        raise KeyboardInterrupt

    monkeypatch.setattr("http.server.ThreadingHTTPServer.serve_forever", interrupted)
    monkeypatch.setenv("DISPLAY", ":0")
    with socket.create_server((web_page.LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
    assert f"open http://localhost:{port}/report.html" in ask(capsys, f"open a --port {port}")
    assert (opened, served) == ([], ["127.0.0.1"]), "no other machine reaches the folder"


def test_without_a_display_the_report_is_served_until_ctrl_c(sweep: None) -> None:
    # in the background it may be ignored, which a process inherits
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, submit.__file__, "open", "a"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
        found = re.fullmatch(r"open (http://localhost:\d+/report\.html)\n", lines[1])
        assert found, lines
        with urllib.request.urlopen(found[1]) as reply:
            assert reply.read() == b"<p>the report</p>"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
    finally:
        process.kill()
        process.communicate()


def test_tensorboard_replaces_the_command_where_a_run_has_logs_or_is_running(
    sweep: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def execv(path: str, command: list[str]) -> NoReturn:
        commands.append(command)
        raise SystemExit

    def replaced() -> str:
        with pytest.raises(SystemExit):
            submit.main(["tensorboard", "a"])
        return capsys.readouterr().out

    monkeypatch.setattr("os.execv", execv)
    assert submit.main(["tensorboard", "a"]) == 2
    assert "no run of a has TensorBoard logs" in capsys.readouterr().err
    make_run(RUNS, "a/n2", "running")
    assert "TensorBoard of a: 0 runs with logs" in replaced()
    make_run(RUNS, "a/n3").attempt(0).tensorboard.mkdir(parents=True)
    out, port = replaced(), commands[-1][-1]
    options = ["--logdir", str(RUNS / "a"), "--host", web_page.LOOPBACK, "--port", port]
    assert commands[-1] == [sys.executable, "-m", "tensorboard.main", *options]
    assert "TensorBoard of a: 1 run with logs" in out
    assert f"open http://localhost:{port}/\n" in out
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert submit.main(["tensorboard", "a"]) == 2
    assert f"{sys.executable} -m pip install tensorboard\n" in capsys.readouterr().err
