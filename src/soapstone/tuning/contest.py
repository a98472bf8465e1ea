"""Run contestants beside one another on all ranks: in turns, until it is clear who is the fastest.

The ranks decide alike because they decide from what they have all heard: after each round everyone learns everyone's
times, and whether rank 0's time is over or a rank was told to stop. A turn takes as long as its slowest rank.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from math import ceil
from time import monotonic, perf_counter

import torch

from ..errors import SoapstoneError
from ..runtime import Transport
from ..runtime.agreement import agree
from .race import Race
from .steps import Step

WARM = 3  # steps that do not count: the first ones record what the others repeat
TURN, MOST_STEPS = 0.05, 20  # seconds of a turn, which are several steps where one is shorter
LEAST_ROUNDS = 3  # however short the time
FEW_ROUNDS = 12  # that should fit into the time: else a turn is one step


class Contest:
    """Every rank makes one and calls `run`. A maker makes a contestant's step on this rank, and raises a SoapstoneError
    on every rank where it fails on one. Where not all fit into memory `together`, each is made anew for each turn."""

    def __init__(
        self, transport: Transport, place: torch.device, makers: Mapping[str, Callable[[], Step]], *, together: bool,
        deadline: float, is_stopped: Callable[[], bool] = lambda: False,
        progress: Callable[[str, Race | None], None] = lambda what, race: None,
    ) -> None:  # fmt: skip
        self.transport, self.place, self.makers, self.together = transport, place, dict(makers), together
        self.deadline, self.is_stopped, self.progress = deadline, is_stopped, progress
        self.refused: dict[str, str] = {}  # why one could not run
        self.ended = ""  # why it is over: "clear", "time", "stopped"; or that a rank failed
        self.failure = ""
        self.race: Race | None = None
        self._steps: dict[str, Step] = {}
        self._counts: dict[str, int] = {}

    def run(self, ours: list[str], reference: str, goal: float) -> Race | None:
        """The race, as far as it came; None where nobody could run. A rank that fails within a step ends it, since the
        others wait for its messages: `failure` says why then, and no rank may talk any more."""
        try:
            self._prepare(ours)
            running = [name for name in ours if name in self._counts]
            if not running:
                return None
            known = [*running, reference]
            self.race = Race(running, reference if reference in self._counts else known[0], goal)
            while not self.ended:
                self._round(self.race)
        except Exception as error:
            self.ended = self.failure = str(error) or type(error).__name__
        self._steps.clear()
        return self.race

    def _prepare(self, ours: list[str]) -> None:
        """Make and warm up everyone, as long as there is time."""
        for name in self.makers:
            self.progress(f"Warming up {name}", None)
            try:
                seconds = self._open(name)
            except SoapstoneError as error:
                self.refused[name] = str(error)
                self._free()
                continue
            self._counts[name] = min(max(ceil(TURN / seconds), 1), MOST_STEPS)
            if not self.together:
                self._close(name)
            if (ended := self._hear(None)[1]) and any(other in self._counts for other in ours):
                self.ended = "stopped" if ended == "stopped" else ""
                break

    def _open(self, name: str) -> float:
        """Seconds of a step of the slowest rank, when it is warm."""
        step = self.makers[name]()
        seconds = [self._timed(step) for _ in range(WARM)]
        self._steps[name] = step
        return float(max(self.transport.exchange(seconds[-1])))

    def _close(self, name: str) -> None:
        del self._steps[name]
        self._free()

    def _free(self) -> None:
        gc.collect()
        if self.place.type == "cuda":
            torch.cuda.empty_cache()

    def _round(self, race: Race) -> None:
        """A turn for each that is still in, beginning with another one each time."""
        first = race.num_rounds % len(race.alive)
        times = {name: self._turn(name) for name in [*race.alive[first:], *race.alive[:first]]}
        everyone, ended = self._hear(times)
        race.add({name: max(own[name] for own in everyone) for name in times})
        if race.num_rounds == 1:
            self._shorten(sum(max(own[name] for own in everyone) * self._counts[name] for name in times))
        if ended == "stopped" or (ended == "time" and race.num_rounds >= LEAST_ROUNDS):
            self.ended = ended
        elif race.is_clear:
            self.ended = "clear"
        self.progress("Racing", race)

    def _turn(self, name: str) -> float:
        if not self.together:
            self._open(name)
        self.transport.exchange(None)  # all begin together
        count, step = self._counts[name], self._steps[name]
        start = perf_counter()
        for _ in range(count):
            step()
        self._wait()
        seconds = (perf_counter() - start) / count
        if not self.together:
            self._close(name)
        return seconds

    def _timed(self, step: Step) -> float:
        start = perf_counter()
        step()
        self._wait()
        return perf_counter() - start

    def _wait(self) -> None:
        if self.place.type == "cuda":
            torch.cuda.synchronize(self.place)

    def _shorten(self, round_seconds: float) -> None:
        """Turns of one step where longer ones would leave too few rounds."""
        left = self.transport.exchange(self.deadline - monotonic())[0]
        if FEW_ROUNDS * round_seconds > left:
            self._counts = dict.fromkeys(self._counts, 1)

    def _hear(self, own: object) -> tuple[list[dict[str, float]], str]:
        """What everyone has to say, and whether it must end: "stopped", "time" or nothing."""
        over = "stopped" if self.is_stopped() else "time" if monotonic() > self.deadline else ""
        heard = self.transport.exchange((own, over))
        stopped = any(ended == "stopped" for _, ended in heard)
        return [found for found, _ in heard], "stopped" if stopped else heard[0][1]


def make_together(transport: Transport, make: Callable[[], Step]) -> Callable[[], Step]:
    """A maker that raises on every rank where one rank's fails."""
    return lambda: agree(transport, make)
