"""Costs that are measured: each distinct part is run on real tensors, once in the life of a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple

from ...errors import SoapstoneError
from ...graph import OperatorGraph
from ..protocol import OpTimes, PreparedCosts, Question, unheard
from .machine import this_machine
from .neighbours import neighbours
from .rounds import Pace, time_all
from .store import Numbers, Store
from .trial import Trial, bytes_of, engine_alone, shared_inputs
from .updates import measured_update

WAVE = 24  # questions that are measured side by side, and kept together
WAVE_BYTES = 2**30


class MeasuredCosts(PreparedCosts):
    """Times of this machine's CPU or first GPU, kept in the cache folder; `again` measures what is there anew. On a
    CPU, `beside` other processes are at work meanwhile, as other ranks will be. Raises SoapstoneError where the device
    is absent, for devices of another kind, and for ops that cannot run alone."""

    by_signature = True

    def __init__(
        self,
        device: str = "cpu",
        *,
        threads: int = 1,
        beside: int = 0,
        rounds: int = 11,
        batch_ms: float = 2.0,
        again: bool = False,
    ) -> None:
        if type(rounds) is not int or rounds < 1 or not batch_ms > 0:
            raise SoapstoneError(f"rounds={rounds!r} of batch_ms={batch_ms!r} measure nothing; both must be above 0")
        self.machine = this_machine(device, threads, beside)
        self.pace = Pace(rounds, max(1, round(batch_ms * 1e6)))
        self.num_measured = self.num_remembered = 0
        self._store = Store(self.machine.key)
        self._stored = {} if again else self._store.read()
        self._known: dict[str, Numbers] = {}  # what was asked so far

    def __repr__(self) -> str:
        return f"MeasuredCosts({self.machine.type!r}, threads={self.machine.threads})"

    def times(
        self, graph: OperatorGraph, index: int, extents: tuple[int, ...], device_kind: str, combines: bool
    ) -> OpTimes:
        self.prepare(graph, [(index, extents, combines)], device_kind)
        return OpTimes(*map(int, self._known[_key(graph, (index, extents, combines))]))

    def prepare(
        self,
        graph: OperatorGraph,
        questions: Iterable[Question],
        device_kind: str,
        progress: Callable[[float], None] = unheard,
    ) -> None:
        """Measure what is not known yet, many parts side by side. What is measured is kept, also where it is stopped
        half-way. `progress` hears the share that is done."""
        self.machine.check_kind(device_kind)
        missing = {key: q for q in questions if not self._remembers(key := _key(graph, q), _is_times)}
        done = 0
        with neighbours(self.machine.beside if missing else 0):
            for wave in _waves(graph, missing):

                def report(share: float, done: int = done, now: int = len(wave)) -> None:
                    progress((done + share * now) / len(missing))

                self._keep(dict(zip(wave, self._measure(graph, [missing[key] for key in wave], report))))
                done += len(wave)

    def update(self, device_kind: str, optimizer: str) -> tuple[int, float]:
        self.machine.check_kind(device_kind)
        key = f"update {optimizer}"
        if not self._remembers(key, _is_update):
            with neighbours(self.machine.beside), self.machine.in_use():
                self._keep({key: measured_update(optimizer, self.pace, self.machine.clock())})
        launch, per_element = self._known[key]
        return int(launch), per_element

    def _measure(
        self, graph: OperatorGraph, questions: Sequence[Question], report: Callable[[float], None]
    ) -> list[Numbers]:
        with self.machine.in_use():
            trials = [Trial(graph, question) for question in questions]
            engine = engine_alone()
            things = [engine, *(timed for trial in trials for timed in trial.timed)]
            time_all(things, self.pace, self.machine.clock(), report)
        return [astuple(trial.times(engine)) for trial in trials]

    def _remembers(self, key: str, fits: Callable[[Numbers], bool]) -> bool:
        if key not in self._known and key in self._stored and fits(self._stored[key]):
            self._known[key] = self._stored[key]
            self.num_remembered += 1
        return key in self._known

    def _keep(self, found: dict[str, Numbers]) -> None:
        self._store.write(found)
        self._known.update(found)
        self.num_measured += len(found)


def _key(graph: OperatorGraph, question: Question) -> str:
    index, extents, combines = question
    shared = "".join("01"[found] for found in shared_inputs(graph, index))
    return f"{graph.signature(index)} {shared} {'x'.join(map(str, extents))}{' combines' if combines else ''}"


def _waves(graph: OperatorGraph, missing: dict[str, Question]) -> Iterator[list[str]]:
    """What fits into memory at once."""
    wave: list[str] = []
    held = 0
    for key, question in missing.items():
        size = bytes_of(graph, question)
        if wave and (len(wave) == WAVE or held + size > WAVE_BYTES):
            yield wave
            wave, held = [], 0
        wave.append(key)
        held += size
    if wave:
        yield wave


def _is_times(numbers: Numbers) -> bool:
    return len(numbers) == 8 and all(type(n) is int and 0 <= n < 2**43 for n in numbers)


def _is_update(numbers: Numbers) -> bool:
    return len(numbers) == 2 and all(type(n) in (int, float) and 0 <= n < 1e9 for n in numbers)
