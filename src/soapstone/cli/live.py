"""A search as it goes: a line that moves where a person looks, a line now and then where none does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from time import monotonic

from rich.console import Console, Group
from rich.live import Live as Screen
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar
from rich.text import Text

from ..searching import Progress, ProofProgress
from .braille import drawn
from .common import Terminal, duration, is_quiet

EVERY = 5.0  # seconds between two lines
WIDE = 120  # characters of a line with all facts
CURVE = (60, 6)  # letters and lines


class Live:
    """Hears of a search's progress and shows it."""

    def __init__(
        self, what: str, data_parallel: float, budget: float | None, bar: Bar | None, console: Console
    ) -> None:
        self.what, self.data_parallel, self.budget, self.bar, self.console = what, data_parallel, budget, bar, console
        self._task = None if bar is None else bar.add_task(what, total=1.0, facts="")
        self._told = 0.0
        self._curve: list[tuple[float, float]] = []

    def __call__(self, now: Progress | ProofProgress) -> None:
        if now.makespan is not None:
            self._curve.append((now.seconds, now.makespan))
        if self.bar is not None and self._task is not None:
            self.bar.update(self._task, completed=now.share, facts=self._facts(now))
        elif now.seconds - self._told >= EVERY:
            self._told = now.seconds
            self.console.print(f"{self.what}: {self._facts(now)}", soft_wrap=True)

    def share(self, share: float) -> None:
        """For what says no more than how far it is."""
        if self.bar is not None and self._task is not None:
            self.bar.update(self._task, completed=share)

    def __rich__(self) -> Group:
        """The curve of the best so far, under a line at data parallelism, and the bar."""
        if self.bar is None or not self._curve:
            return Group(*filter(None, [self.bar]))
        seconds = self._curve[-1][0] if self.budget is None else self.budget
        top = max(self.data_parallel, self._curve[0][1])
        lines = drawn(self._curve, *CURVE, max(seconds, self._curve[-1][0]), top)
        labels = {0: duration(top), len(lines) - 1: "0 ms"}
        rows = [Text.assemble(f"{labels.get(i, ''):>12} ", (line, "cyan")) for i, line in enumerate(lines)]
        return Group(*rows, self.bar)

    def _facts(self, now: Progress | ProofProgress) -> str:
        if self.bar is not None and self.console.width < WIDE:
            return self._few_facts(now)
        facts = [getattr(now, "phase", "")] if not now.seconds else []
        if isinstance(now, Progress) and now.proposals:
            facts.append(f"{now.proposals:,} proposals, {now.proposals / max(now.seconds, 1e-9):,.0f}/s")
        if now.makespan is not None:
            facts.append(f"best {duration(now.makespan)}, {self.data_parallel / now.makespan:.2f}x data parallelism")
        elif now.seconds:
            facts.append("nothing that fits yet")
        if self.budget is not None and now.seconds:
            facts.append(f"at most {max(self.budget - now.seconds, 0):.0f} s left")
        return "; ".join(facts)

    def _few_facts(self, now: Progress | ProofProgress) -> str:
        if not now.seconds:
            return ""
        best = "nothing that fits yet"
        if now.makespan is not None:
            best = f"{duration(now.makespan)}, {self.data_parallel / now.makespan:.2f}x data"
        return best if self.budget is None else f"{best}; {max(self.budget - now.seconds, 0):.0f} s left"


class Measuring:
    """Shows the fraction of the measurements that is done, and what is measured next."""

    def __init__(self, what: str, bar: Bar | None, console: Console, every: float) -> None:
        self.what, self.bar, self.console, self.every = what, bar, console, every
        self._task = None if bar is None else bar.add_task(what, total=1.0, facts="")
        self._told = monotonic()

    def __call__(self, share: float, facts: str = "") -> None:
        if self.bar is not None and self._task is not None:
            self.bar.update(self._task, completed=share, facts=facts)
        elif monotonic() - self._told >= self.every:
            self._told = monotonic()
            line = f"{self.what}: {share:.0%}{facts and f', {facts}'}"
            self.console.print(line, soft_wrap=True)


@contextmanager
def measuring(what: str, every: float = EVERY) -> Iterator[Measuring]:
    """Progress of measurements; if the output is not a terminal, a line every so many seconds."""
    with _bar(what) as (bar, console):
        yield Measuring(what, bar, console, every)


@contextmanager
def live(what: str, data_parallel: float, budget: float | None) -> Iterator[Live]:
    with _bar(what, shown=False) as (bar, console):
        show = Live(what, data_parallel, budget, bar, console)
        if bar is None:
            yield show
            return
        with Screen(show, console=console, transient=True, refresh_per_second=8):
            yield show


@contextmanager
def _bar(what: str, shown: bool = True) -> Iterator[tuple[Bar | None, Console]]:
    """A bar where a person looks, unless somebody else shows it; else a line that says what begins."""
    console = Terminal(stderr=True, quiet=is_quiet())
    if not console.is_terminal or is_quiet():
        console.print(f"{what} ...")
        yield None, console
        return
    wide = console.width >= WIDE
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(20 if wide else 10),
        TaskProgressColumn(),
        *([TimeElapsedColumn()] if wide else []),
        TextColumn("{task.fields[facts]}", markup=False),
    )
    bar = Bar(*columns, console=console, transient=True)
    with bar if shown else nullcontext():
        yield bar, console
