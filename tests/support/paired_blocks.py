"""Generated durations of blocks of steps, and arms of an A/B experiment that take them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

from jobs.arms.experiment import ArmFailed, Experiment, Options
from jobs.arms.plan import Changes

STEP_S = 0.05
SLOW, BROKEN = "SLOW", "BROKEN"
"""Variables: the share by which a step takes longer (`SLOW...`; their sum counts); the failure of the arm, at
its `start` or in a `block`."""
NOISE = ("independent", "autocorrelated", "drifting", "bursts")


def log_noise(kind: str, seed: int, spread: float = 0.01) -> Iterator[float]:
    """Logarithms of the durations of consecutive blocks of one machine, without an end.

    `independent`: normal of standard deviation `spread`. `autocorrelated`: AR(1) of coefficient 0.9 and the
    same marginal deviation. `drifting`: normal around a random walk with a trend. `bursts`: normal, with
    neighbours that arrive for about five blocks and make them up to a half longer.
    """
    chance = random.Random(f"{kind} {seed}")
    level = 0.0
    while True:
        if kind == "autocorrelated":
            level = 0.9 * level + chance.gauss(0, spread * math.sqrt(1 - 0.9**2))
            yield level
            continue
        if kind == "drifting":
            level += spread / 5 + chance.gauss(0, spread)
        elif kind == "bursts":
            arrives, leaves = chance.random() < 0.02, chance.random() < 0.2
            level = chance.uniform(0, 0.4) if arrives else 0.0 if leaves else level
        yield level + chance.gauss(0, spread)


class Machine:
    """A launcher of arms (`experiment.Launcher`) that share the noise of one machine and its clock."""

    def __init__(self, noise: Iterator[float], start_s: float = 0.0) -> None:
        self.noise, self.start_s = noise, start_s
        self.now = 0.0
        self.arms: list[GeneratedArm] = []
        self.running: list[int] = []
        self.started: list[dict[str, str | None]] = []

    def start(self, changes: Changes, within_s: float = math.inf) -> int:
        self.started.append(dict(changes))
        if self.start_s > within_s:
            self.now += within_s
            raise ArmFailed("the ranks did not answer in time")
        self.now += self.start_s
        if changes.get(BROKEN) == "start":
            raise ArmFailed("interface 'ib9' does not exist")
        self.arms.append(GeneratedArm(self, changes))
        self.running.append(len(self.arms) - 1)
        return self.running[-1]

    def block(self, arm: int, steps: int) -> float:
        return self.arms[arm].block(steps)

    def end(self, arm: int) -> None:
        self.running.remove(arm)


class GeneratedArm:
    """Takes the next duration of its machine, longer by its own `SLOW`."""

    def __init__(self, machine: Machine, changes: Changes) -> None:
        self._machine, self._changes, self._blocks = machine, changes, 0

    def block(self, steps: int) -> float:
        self._blocks += 1
        if self._changes.get(BROKEN) == "block" and self._blocks > 2:
            raise ArmFailed("no answer within 300 s")
        slow = sum(float(value or 0) for name, value in self._changes.items() if name.startswith(SLOW))
        seconds = STEP_S * (1 + slow) * math.exp(next(self._machine.noise))
        self._machine.now += steps * seconds
        return seconds


def experiment(
    kind: str, seed: int, settings: dict[str, str], options: Options, spread: float = 0.01
) -> Experiment:
    """A finished experiment on generated durations."""
    machine = Machine(log_noise(kind, seed, spread))
    made = Experiment(machine, options, clock=lambda: machine.now)
    made.run(settings)
    return made
