"""A `pynvml` that replays a session: for each GPU the answers to each call, in order, the last one for ever.

An answer `{"error": code}` raises the NVMLError of that code. All names but the calls (constants, error
classes) are those of the real module, so what is refused or misspelt there is so here. The session was
put together by hand, so that much goes wrong in few rounds: two GPUs, one of which is lost in the third.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

SESSION = Path(__file__).with_name("nvml_session.json")
Session = dict[str, Any]
WELL, LOST = "GPU-5a2c0b6e-9d1f-4e3a-8b7c-1f2e3d4c5b6a", "GPU-77d1e0aa-0c2b-4f7d-9a55-6b8c9d0e1f2a"
"""The GPUs in it; the second one is lost."""


def load(path: Path = SESSION) -> Session:
    return json.loads(path.read_text())


def raising(error: BaseException) -> Callable[..., Any]:
    """A call that fails so."""

    def call(*_: Any) -> Any:
        raise error

    return call


def module(session: Session) -> types.ModuleType:
    """The module that replays it. `module.asked` counts the calls by GPU and name."""
    fake = types.ModuleType("pynvml")
    replay = _Replay(session)
    for name, value in vars(pynvml).items():
        setattr(fake, name, replay.call(name) if name.startswith("nvmlDevice") else value)
    fake.asked = replay.asked
    fake.nvmlInit = replay.init
    fake.nvmlShutdown = lambda: None
    fake.nvmlSystemGetDriverVersion = lambda: session["driver"]
    fake.nvmlDeviceGetHandleByUUID = lambda name: replay.look_up({uuid: uuid for uuid in replay.gpus}, name)
    fake.nvmlDeviceGetHandleByPciBusId = lambda name: replay.look_up(replay.buses, name)
    fake.nvmlDeviceGetCount = lambda: len(replay.gpus)
    fake.nvmlDeviceGetHandleByIndex = replay.handle
    fake.nvmlDeviceGetFieldValues = replay.fields
    fake.nvmlEventSetCreate = lambda: {}
    fake.nvmlDeviceRegisterEvents = replay.register
    fake.nvmlEventSetWait_v2 = lambda events, _: replay.answer(events["uuid"], "nvmlEventSetWait_v2")
    return fake


class _Replay:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.gpus: dict[str, dict[str, Any]] = session["gpus"]
        self.buses = {gpu["pci_bus_id"]: uuid for uuid, gpu in self.gpus.items()}
        self.asked: dict[str, dict[str, int]] = {uuid: {} for uuid in self.gpus}

    def init(self) -> None:
        if "init" in self.session:
            raise pynvml.NVMLError(self.session["init"]["error"])

    def look_up(self, known: dict[str, str], name: str) -> str:
        if name not in known:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return known[name]

    def handle(self, number: int) -> str:
        uuid = [*self.gpus][number]
        if "refused" in self.gpus[uuid]:
            raise pynvml.NVMLError(self.gpus[uuid]["refused"])
        return uuid

    def call(self, name: str) -> Callable[..., Any]:
        return lambda uuid, *arguments: self.answer(uuid, _key(name, arguments))

    def answer(self, uuid: str, key: str) -> Any:
        count = self.asked[uuid].get(key, 0)
        self.asked[uuid][key] = count + 1
        answers = self.gpus[uuid]["calls"].get(key, [{"error": pynvml.NVML_ERROR_NOT_SUPPORTED}])
        found = answers[min(count, len(answers) - 1)]
        if not isinstance(found, dict):
            return found
        if "error" in found:
            raise pynvml.NVMLError(found["error"])
        return types.SimpleNamespace(**found)

    def fields(self, uuid: str, wanted: list[tuple[int, int]]) -> list[Any]:
        try:
            found = self.answer(uuid, _key("nvmlDeviceGetFieldValues", wanted[0]))
        except pynvml.NVMLError as error:
            return [types.SimpleNamespace(nvmlReturn=error.value)]
        value = types.SimpleNamespace(ullVal=found.value)
        return [types.SimpleNamespace(nvmlReturn=0, valueType=found.type, value=value)]

    def register(self, uuid: str, kinds: int, events: dict[str, str]) -> None:
        self.answer(uuid, "nvmlDeviceRegisterEvents")
        events["uuid"] = uuid


def _key(name: str, arguments: Any) -> str:
    return " ".join([name, *map(str, arguments)])
