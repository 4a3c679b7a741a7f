"""A `pynvml` that replays a session: for each GPU the answers to each call, in order, the last one for ever.

An answer `{"error": code}` raises the NVMLError of that code. All names but the calls (constants, error
classes) are those of the real module, so what is refused or misspelt there is so here. `Recording` makes
such a session of the real thing: `python -m tests.support.nvml OUT.json` on a machine with a GPU. The one
here was put together by hand in the same form, so that much goes wrong in few rounds: two GPUs, one of which
is lost in the third.
"""

from __future__ import annotations

import json
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

from disttrain.hardware.fields import FIELDS

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


class Recording(types.ModuleType):
    """`pynvml` (or a replay of it) as it answers, noting every answer about the GPUs that are looked up."""

    def __init__(self, real: types.ModuleType) -> None:
        super().__init__("pynvml")
        self.__dict__.update({k: v for k, v in vars(real).items() if not k.startswith("__")})
        self.session: Session = {"driver": "", "gpus": {}}
        self._handles: dict[int, str] = {}
        self._kept: list[Any] = []
        for name, value in vars(real).items():
            if name.startswith("nvmlDeviceGet") and callable(value):
                setattr(self, name, self._noting(name, value))
        self.nvmlDeviceGetHandleByUUID = self._looking_up(real)
        self.nvmlDeviceRegisterEvents = self._registering(real)
        self.nvmlEventSetWait_v2 = self._waiting(real)
        self.nvmlSystemGetDriverVersion = lambda: self._driver(real)

    def _driver(self, real: Any) -> str:
        self.session["driver"] = real.nvmlSystemGetDriverVersion()
        return self.session["driver"]

    def _looking_up(self, real: Any) -> Callable[[str], Any]:
        def look(uuid: str) -> Any:
            handle = real.nvmlDeviceGetHandleByUUID(uuid)
            self._handles[id(handle)] = uuid
            self._kept.append(handle)  # so that its id stays its own
            self.session["gpus"].setdefault(uuid, {"pci_bus_id": None, "calls": {}})
            return handle

        return look

    def _noting(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def ask(handle: Any, *arguments: Any) -> Any:
            uuid = self._handles[id(handle)]
            if name == "nvmlDeviceGetFieldValues":
                found = real(handle, *arguments)
                value = found[0]
                told = {"error": value.nvmlReturn}
                if not value.nvmlReturn:
                    told = {"value": value.value.ullVal, "type": value.valueType}
                self._note(uuid, _key(name, arguments[0][0]), told)
                return found
            return self._answer(uuid, _key(name, arguments), lambda: real(handle, *arguments))

        return ask

    def _registering(self, real: Any) -> Callable[..., None]:
        def register(handle: Any, kinds: int, events: Any) -> None:
            uuid = self._handles[id(handle)]
            self._handles[id(events)] = uuid
            self._kept.append(events)

            def act() -> bool:
                real.nvmlDeviceRegisterEvents(handle, kinds, events)
                return True

            self._answer(uuid, "nvmlDeviceRegisterEvents", act)

        return register

    def _waiting(self, real: Any) -> Callable[..., Any]:
        return lambda events, wait_ms: self._answer(
            self._handles[id(events)],
            "nvmlEventSetWait_v2",
            lambda: real.nvmlEventSetWait_v2(events, wait_ms),
        )

    def _answer(self, uuid: str, key: str, act: Callable[[], Any]) -> Any:
        try:
            found = act()
        except pynvml.NVMLError as error:
            self._note(uuid, key, {"error": error.value})
            raise
        plain = isinstance(found, int | float | str)
        names = [n for n in ("gpu", "memory", "used", "total", "free", "eventData") if hasattr(found, n)]
        self._note(uuid, key, found if plain else {name: getattr(found, name) for name in names})
        return found

    def _note(self, uuid: str, key: str, answer: Any) -> None:
        self.session["gpus"][uuid]["calls"].setdefault(key, []).append(answer)


def record(rounds: int, every_s: float) -> Session:
    """A session of this machine's first GPU under `Readings`."""
    from disttrain.hardware.readings import Readings

    recording = Recording(pynvml)
    pynvml.nvmlInit()
    uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
    recording.nvmlSystemGetDriverVersion()
    fields = [row for row in FIELDS if row.of == "gpu"]
    reader = Readings(fields, recording, recording.nvmlDeviceGetHandleByUUID(uuid))
    for _ in range(rounds):
        reader.read(time.monotonic())
        time.sleep(every_s)
    return recording.session


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(record(20, 0.5), indent=1) + "\n")
