"""Batch scripts in tests: what they are made from, and a PATH on which running one shows what it does."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from pydantic import ValidationError

from disttrain.config.config_tree import Config
from disttrain.errors import ConfigError
from jobs.schedulers import SHIPPED
from jobs.schedulers.slurm.profile import GENERIC, Profile
from jobs.schedulers.slurm.script import ArrayTask, ScriptFields, render

SHARED = Path("/shared")
SHIPPED_NAMES = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
DEAF = ["sh", "-c", 'trap "" USR1 USR2 TERM; exec "$@"', "sh"]
"""Command prefix of an agent: no signal ends it before it listens."""
CANARY = "canary"
"""A file that only injected text could make."""
FRAGMENTS = (
    f"$(touch {CANARY})", f"`touch {CANARY}`", f";touch {CANARY};", f"\ntouch {CANARY}\n",
    f"&& touch {CANARY} #", f"| touch {CANARY}", f">{CANARY}", f"' touch {CANARY} '", f'" touch {CANARY} "',
    "\n#SBATCH --nodes=9", "--nodes=9", "${IFS}", "$HOME", "~", "*", "?", "[a-z]", "{a,b}", "!!", "%j",
    "%A_%a", "%%", "#", "\\", "'", '"', "\\\n", " ", "  ", "-", "--", "é", "名前", "\u2028", "\u202e",
    "\t", "\r", "\x00", "\x1b[2J", ":", ",", "=", "(", ")", "&", "<", "a", "B", "0", "/", ".",
)  # fmt: skip
hostile = st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)
odd = st.lists(
    st.sampled_from([text for text in FRAGMENTS if text.isprintable() and not set("\\:,") & set(text)]),
    min_size=1,
    max_size=4,
).map(lambda parts: "x" + "".join(parts))
"""Strange, but nothing that is refused everywhere."""
plain = st.text("abcXYZ019_.-", min_size=1, max_size=8).filter(lambda text: text.strip(".-") != "")


def config(nodes: int = 2, ranks: int = 4, **sections: Any) -> dict[str, Any]:
    """A run's resolved config."""
    resources = {"nodes": nodes, "gpus_per_node": ranks, "threads_per_rank": 2}
    return Config.model_validate({"resources": resources, "data": {"workers": 3}, **sections}).as_dict()


def batch(root: Path, profile: Profile = GENERIC, runs: int = 1, **changed: Any) -> ScriptFields:
    """A batch of runs below `root`."""
    folders = [root / "runs" / "demo" / f"n2-r{number}" for number in range(runs)]
    values: dict[str, Any] = {
        "name": "n2",
        "comment": "disttrain:demo/n2-r0:0:abc",
        "config": config(),
        "tasks": [ArrayTask(folder, number) for number, folder in enumerate(folders)],
        "logs": root / "runs" / "demo" / "n2-r0" / "submissions",
        "code": root / "code",
        "python": "/usr/bin/python3",
        "profile": profile,
    }
    return ScriptFields(**values | changed)


free = st.one_of(hostile, odd, plain)
options_given = st.fixed_dictionaries(
    {}, optional={"mcs-label": free, "bb": free, "contiguous": st.just(True)}
)
fields = st.fixed_dictionaries(
    {},
    optional={
        **{
            name: free
            for name in (
                "description", "partition", "account", "qos", "constraint", "reservation", "exclude",
                "gpu_type", "memory", "mail_user", "wckey", "python",
            )
        },
        "mail_type": st.lists(st.sampled_from(["NONE", "END", "FAIL", "BEGIN"]), max_size=2),
        "modules": st.lists(free, max_size=2),
        "sbatch": options_given,
        "srun": options_given,
    },
)  # fmt: skip
placing = st.fixed_dictionaries({name: free for name in ("name", "comment", "root", "code", "python")})


def sift(given: dict[str, Any]) -> Profile:
    """The profile of those fields that are not refused."""
    kept: dict[str, Any] = {"name": "fuzzed"}
    for name, value in given.items():
        with contextlib.suppress(ValidationError):
            Profile.model_validate(kept | {name: value})
            kept[name] = value
    return Profile.model_validate(kept)


def sift_batch(profile: Profile, placed: dict[str, str]) -> ScriptFields:
    """The batch of those values that are not refused."""
    made = batch(SHARED, profile)
    for name, value in placed.items():
        changed: dict[str, Any] = {name: value}
        if name == "root":
            run_dir = SHARED / value / "demo" / "n2"
            changed = {"logs": run_dir / "submissions", "tasks": [ArrayTask(run_dir, 3)]}
        elif name == "code":
            changed = {"code": SHARED / value / "code"}
        with contextlib.suppress(ConfigError):
            tried = dataclasses.replace(made, **changed)
            render(tried)
            made = tried
    return made


def directives(script: str) -> dict[str, str]:
    """The options that sbatch reads from a script, by the rules of its own reader of such lines."""
    found = {}
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            for argument in _arguments(line.removeprefix("#SBATCH")):
                name, _, value = argument.removeprefix("--").partition("=")
                found[name] = value
        elif line and not line.startswith("#"):
            break
    return found


def _arguments(line: str) -> list[str]:
    words, word, quote, escaped, inside = [], "", "", False, False
    for sign in line:
        if escaped:
            word, escaped = word + sign, False
        elif sign == "\\":
            escaped = inside = True
        elif quote:
            word, quote = (word, "") if sign == quote else (word + sign, quote)
        elif sign in "\"'":
            quote, inside = sign, True
        elif sign == "#":
            break
        elif sign.isspace():
            words, word, inside = ([*words, word] if inside else words), "", False
        else:
            word, inside = word + sign, True
    assert not quote, line
    return [*words, word] if inside else words


@dataclass(frozen=True)
class Trace:
    """What running a script came to."""

    started: list[str]
    """The arguments of srun."""
    modules: list[str]
    """The arguments of `module`."""
    environment: dict[str, str]
    """What srun found there."""


def run(script: str, folder: Path, *arguments: str, **environment: str) -> Trace:
    """Run a script where the commands it calls, `srun` the last, only write down how they are called.

    Its code is taken to be where it says. Fails if it leaves anything behind where it ran.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stubs, records, work = folder / "stubs", folder / "records", folder / "work"
    for made in (stubs, records, work):
        made.mkdir(exist_ok=True)
    for name, record in (("srun", "started"), ("module", "module")):
        stub = stubs / name
        stub.write_text(f"#!/bin/sh\ncd '{records}'\nprintf '%s\\0' \"$@\" > {record}\nenv -0 > env\n")
        stub.chmod(0o755)
    show = stubs / "scontrol"
    show.write_text('#!/bin/sh\nprintf "   UserId=x\\n   Command=%s\\n" "$SHOWN_COMMAND"\n')
    show.chmod(0o755)
    before = sorted(os.listdir(work))
    environ = {"PATH": f"{stubs}:/usr/bin:/bin", "HOME": str(work), "SLURM_JOB_ID": "7", **environment}
    (folder / "script").write_text(script.replace('[ -d "$copy" ]', "true", 1))
    command = ["bash", str(folder / "script"), *arguments]
    done = subprocess.run(command, cwd=work, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir(work)) == before, "something injected ran"
    found = dict(pair.partition("=")[::2] for pair in _words(records / "env"))
    return Trace(_words(records / "started"), _words(records / "module"), found)


def _words(path: Path) -> list[str]:
    return path.read_bytes().decode().split("\0")[:-1] if path.exists() else []
