"""Python state that a forward changes, and whatever else torch.export would freeze without a word."""

from __future__ import annotations

import datetime
import gc
import itertools
import os
import random
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from time import time_ns
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import soapstone as ss
from soapstone.errors import CaptureError
from soapstone.runtime import ThreadTransport
from soapstone.runtime.transports import alone
from soapstone.tracing import FrozenValues, capture_again
from soapstone.tracing.observe import Observer

X = torch.randn(4, 3)
CALLS, SEEN, SCALE = 0, list[int](), 2.0


def helper() -> None:
    pass


helper.calls = 0  # type: ignore[attr-defined]


COLLECTIONS, DEATHS = 0, 0


def counts_collections(phase: str, info: dict[str, int]) -> None:
    global COLLECTIONS
    COLLECTIONS += 1


def counts_deaths(reference: object) -> None:
    global DEATHS
    DEATHS += 1


class Cyclic:
    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        global DEATHS
        DEATHS += 1


def collects(self: Stateful, x: torch.Tensor) -> Any:
    kept = [Cyclic()]
    watched = weakref.ref(kept[0], counts_deaths)
    kept.clear()
    gc.collect()
    assert watched() is None
    return 1


def test_what_the_interpreter_calls_by_itself_is_not_part_of_forward() -> None:
    gc.callbacks.append(counts_collections)
    try:
        assert ss.capture(Stateful(collects), (X,), loss=torch.sum).ops
    finally:
        gc.callbacks.remove(counts_collections)
    assert COLLECTIONS
    assert DEATHS


LIBRARY = ModuleType("library")
LIBRARY.__file__ = "/usr/lib/python3/dist-packages/library.py"
exec("calls = 0\ndef called():\n    global calls\n    calls += 1\n    return 1", vars(LIBRARY))


def calls_a_library(self: Stateful, x: torch.Tensor) -> Any:
    return LIBRARY.called()


def reads_a_clock(*_: object) -> None:
    time.perf_counter()


def test_a_clock_that_a_callback_reads_is_not_read_by_forward() -> None:
    gc.callbacks.append(reads_a_clock)
    work = ss.Workload(Stateful(collects), (X,), loss=torch.sum)
    try:
        with Observer(work) as observer:
            work.model(X)
    finally:
        gc.callbacks.remove(reads_a_clock)
    assert observer.clock is None


def test_a_library_that_the_model_is_not_made_of_may_keep_globals() -> None:
    assert ss.capture(Stateful(calls_a_library), (X,), loss=torch.sum).ops
    assert vars(LIBRARY)["calls"]


class Helper:
    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0

    def bump(self) -> int:
        self.calls += 1
        return self.calls


class Stateful(nn.Module):
    """A layer, scaled by what `by` makes of the state."""

    shared = 0

    def __init__(self, by: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.a, self.by = nn.Linear(3, 3), by
        self.count, self.seen, self.kept, self.warm = 0, list[Any](), dict[str, Any](), False
        self.helper, self.settings = Helper(), {"scale": 2.0}
        self.random, self.generator = random.Random(0), numpy.random.default_rng(0)
        self.numbers, self.counts = iter(range(9)), itertools.count(1)
        self.table, self.array = {"n": torch.ones(3)}, numpy.ones(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.a(x)
        out: torch.Tensor = made * self.by(self, x)
        return out


def counts(self: Stateful, x: torch.Tensor) -> Any:
    self.count += 1
    return self.count


def counts_unread(self: Stateful, x: torch.Tensor) -> Any:
    self.count = self.count + 1
    return 1


def counts_by_setattr(self: Stateful, x: torch.Tensor) -> Any:
    setattr(self, "co" + "unt", self.count + 1)
    return self.count


def grows(self: Stateful, x: torch.Tensor) -> Any:
    seen = self.seen
    seen.append(1)
    return len(self.seen)


def counts_in_a_helper(self: Stateful, x: torch.Tensor) -> Any:
    return self.helper.bump()


def writes_a_global(self: Stateful, x: torch.Tensor) -> Any:
    global CALLS
    CALLS += 1
    return CALLS


def grows_a_global(self: Stateful, x: torch.Tensor) -> Any:
    SEEN.append(1)
    return len(SEEN)


def writes_a_global_in_vmap(self: Stateful, x: torch.Tensor) -> Any:
    def each(row: torch.Tensor) -> torch.Tensor:
        global CALLS
        CALLS += 1
        return row * CALLS

    return torch.vmap(each)(x)


def writes_its_class(self: Stateful, x: torch.Tensor) -> Any:
    type(self).shared += 1
    return self.shared


def writes_a_function(self: Stateful, x: torch.Tensor) -> Any:
    helper.calls += 1  # type: ignore[attr-defined]
    return helper.calls  # type: ignore[attr-defined]


def grows_a_default(self: Stateful, x: torch.Tensor, seen: list[int] = []) -> Any:  # noqa: B006
    seen.append(1)
    return len(seen)


def writes_around() -> Callable[[Stateful, torch.Tensor], Any]:
    calls = 0

    def bump(self: Stateful, x: torch.Tensor) -> Any:
        nonlocal calls
        calls += 1
        return calls

    return bump


def draws(self: Stateful, x: torch.Tensor) -> Any:
    return self.random.random()


def draws_of_numpy(self: Stateful, x: torch.Tensor) -> Any:
    return float(self.generator.random())


def takes_the_next(self: Stateful, x: torch.Tensor) -> Any:
    return next(self.numbers)


def takes_the_next_count(self: Stateful, x: torch.Tensor) -> Any:
    return next(self.counts)


def writes_an_array(self: Stateful, x: torch.Tensor) -> Any:
    self.array[0] += 1
    return float(self.array[0])


def takes_turns(self: Stateful, x: torch.Tensor) -> Any:
    self.warm = not self.warm
    return 2 if self.warm else 1


CHANGES: dict[str, tuple[Any, str, str]] = {
    "a number": (counts, "'count'", "self.count += 1"),
    "a number that nothing reads": (counts_unread, "'count'", "self.count = self.count + 1"),
    "setattr": (counts_by_setattr, "'count'", "setattr(self,"),
    "a list": (grows, "'seen'", "seen.append(1)"),
    "an object": (counts_in_a_helper, "'helper.calls'", "self.calls += 1"),
    "a global": (writes_a_global, f"the global 'CALLS' of {__name__}", "CALLS += 1"),
    "a global in vmap": (writes_a_global_in_vmap, f"the global 'CALLS' of {__name__}", "CALLS += 1"),
    "a global list": (grows_a_global, f"the global 'SEEN' of {__name__}", "SEEN.append(1)"),
    "a class": (writes_its_class, "Stateful.shared", "type(self).shared += 1"),
    "a function": (writes_a_function, "helper.calls", "helper.calls += 1"),
    "a default": (grows_a_default, "a default of grows_a_default[0]", "seen.append(1)"),
    "a closure": (writes_around(), "the variable 'calls' around writes_around.<locals>.bump", "calls += 1"),
    "a generator of Python's": (draws, "'random'", "return self.random.random()"),
    "a generator of numpy's": (draws_of_numpy, "'generator'", "return float(self.generator.random())"),
    "an iterator": (takes_the_next, "'numbers'", "return next(self.numbers)"),
    "a count": (takes_the_next_count, "'counts'", "return next(self.counts)"),
    "an array": (writes_an_array, "'array'", "self.array[0] += 1"),
    "a flag that goes to and fro": (takes_turns, "'warm'", "self.warm = not self.warm"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_state_that_each_forward_changes_is_refused_by_its_line_and_put_back(case: str) -> None:
    by, place, line = CHANGES[case]
    model = Stateful(by)
    with pytest.raises(CaptureError) as error:
        ss.capture(model, (X,), loss=torch.sum)
    said = str(error.value)
    assert said.startswith(f"the model changes {place} in its forward (tests/tracing/test_state.py, line ")
    assert line in said
    assert said.endswith("compute it outside of the model, and pass it as an input")
    assert (model.count, model.seen, model.helper.calls, model.warm) == (0, [], 0, False)
    assert (CALLS, SEEN, Stateful.shared, helper.calls) == (0, [], 0, 0)  # type: ignore[attr-defined]
    assert model.random.random() == random.Random(0).random()
    assert model.generator.random() == numpy.random.default_rng(0).random()
    assert model.array.tolist() == [1, 1, 1]


def test_what_the_loss_changes_is_refused_too() -> None:
    weights = []

    def loss(output: torch.Tensor) -> torch.Tensor:
        weights.append(1)
        return output.sum() * len(weights)

    with pytest.raises(CaptureError, match=r"changes the variable 'weights' around .*: weights.append\(1\)"):
        ss.capture(nn.Linear(3, 3), (X,), loss=loss)
    assert weights == []


def keeps_the_last(self: Stateful, x: torch.Tensor) -> Any:
    last = self.seen.pop() if self.seen else 1
    self.seen.append(x.mean())
    return last


def sets_an_attribute(self: Stateful, x: torch.Tensor) -> Any:
    self.last = x.mean()
    return self.last


def adds_to_a_tensor(self: Stateful, x: torch.Tensor) -> Any:
    self.table["n"] += 1
    return self.table["n"]


@pytest.mark.parametrize(
    ("by", "place"), [(keeps_the_last, "seen[0]"), (sets_an_attribute, "last"), (adds_to_a_tensor, "n")]
)
def test_tensors_that_each_forward_keeps_are_refused(by: Any, place: str) -> None:
    model = Stateful(by)
    with pytest.raises(
        CaptureError, match=r"the model sets .* anew in its forward \(.*keep such state outside"
    ) as error:
        ss.capture(model, (X,), loss=torch.sum)
    assert place in str(error.value)
    assert model.seen == []
    assert not hasattr(model, "last")
    assert model.table["n"].tolist() == [1, 1, 1]


def settles(self: Stateful, x: torch.Tensor) -> Any:
    scale = 2 if self.warm else 1
    self.warm = True
    return scale


def keeps_a_parameter(self: Stateful, x: torch.Tensor) -> Any:
    if "norm" not in self.kept:
        self.kept["norm"] = self.a.weight.sum()
    return self.kept["norm"]


def keeps_a_batch(self: Stateful, x: torch.Tensor) -> Any:
    return self.kept.setdefault("mean", x.mean())


@pytest.mark.parametrize(
    ("by", "place", "line"),
    [
        (settles, "'warm'", "self.warm = True"),
        (keeps_a_parameter, "'kept'", 'self.kept["norm"] = self.a.weight.sum()'),
        (keeps_a_batch, "'kept'", 'return self.kept.setdefault("mean", x.mean())'),
    ],
)
def test_state_that_settles_but_changes_the_result_is_refused(by: Any, place: str, line: str) -> None:
    with pytest.raises(CaptureError) as error:
        ss.capture(Stateful(by), (X,), loss=torch.sum)
    said = str(error.value)
    assert said.startswith(f"the model sets {place} in its first forward (tests/tracing/test_state.py, line ")
    assert line in said


def builds_a_table(self: Stateful, x: torch.Tensor) -> Any:
    if "table" not in self.kept:
        self.kept["table"] = torch.arange(3.0) + torch.tensor([1.0, 2.0, 3.0])
    return self.kept["table"] * torch.tensor([3.0, 2.0, 1.0])


def builds_an_attribute(self: Stateful, x: torch.Tensor) -> Any:
    if not hasattr(self, "positions"):
        self.positions = torch.arange(3.0)
    return self.positions


def sets_a_flag(self: Stateful, x: torch.Tensor) -> Any:
    self.warm = True
    return 1


def measures_time(self: Stateful, x: torch.Tensor) -> Any:
    before = time.perf_counter()
    return 1 if time.perf_counter() - before < 1e9 else 2


@pytest.mark.parametrize("by", [builds_a_table, builds_an_attribute, sets_a_flag, measures_time])
def test_state_that_settles_and_changes_nothing_else_is_fine_and_left_as_it_was(by: Any) -> None:
    model = Stateful(by)
    before = torch.get_rng_state()
    graph = ss.capture(model, (X,), loss=torch.sum)
    assert graph.ops
    assert (model.kept, model.warm, hasattr(model, "positions")) == ({}, False, False)
    assert torch.equal(before, torch.get_rng_state())
    model(X)


PERIOD = 9901  # seconds, of which the time between the two calls that are compared is an odd multiple


def reads_time(self: Stateful, x: torch.Tensor) -> Any:
    return time.time()


def reads_the_date(self: Stateful, x: torch.Tensor) -> Any:
    return datetime.datetime.now().microsecond


def branches_on_time(self: Stateful, x: torch.Tensor) -> Any:
    return 2 if time.time() // PERIOD % 2 else 1


def branches_on_nanoseconds(self: Stateful, x: torch.Tensor) -> Any:
    return 2 if time_ns() // (PERIOD * 10**9) % 2 else 1


def branches_on_the_date(self: Stateful, x: torch.Tensor) -> Any:
    return 2 if datetime.datetime.now().timestamp() // PERIOD % 2 else 1


TIMES = [reads_time, reads_the_date, branches_on_time, branches_on_nanoseconds, branches_on_the_date]


@pytest.mark.parametrize("by", TIMES)
def test_a_model_that_computes_with_the_time_is_refused(by: Any) -> None:
    with pytest.raises(CaptureError, match=r"computes with the time \(tests/tracing/test_state.py, line \d+: return "):
        ss.capture(Stateful(by), (X,), loss=torch.sum)


def seeds(self: Stateful, x: torch.Tensor) -> Any:
    torch.manual_seed(0)
    return 1


def test_another_thread_may_seed_torch_during_a_capture() -> None:
    def forward(self: Stateful, x: torch.Tensor) -> Any:
        thread = threading.Thread(target=lambda: torch.manual_seed(0))
        thread.start()
        thread.join()
        return 1

    ss.capture(Stateful(forward), (X,), loss=torch.sum)


def test_a_model_that_seeds_torch_is_refused() -> None:
    model, before = Stateful(seeds), torch.get_rng_state()
    with pytest.raises(CaptureError, match=r"seeds torch's random numbers in its forward \(.*torch.manual_seed\(0\)"):
        ss.capture(model, (X,), loss=torch.sum)
    assert torch.equal(before, torch.get_rng_state())


def asks_for_gradients(self: Stateful, x: torch.Tensor) -> Any:
    return 3 if torch.is_grad_enabled() else 5


def test_gradients_are_on_in_a_capture_whatever_they_are_around_it() -> None:
    wanted = ss.capture(Stateful(asks_for_gradients), (X,), loss=torch.sum).fingerprint
    with torch.no_grad():
        assert ss.capture(Stateful(asks_for_gradients), (X,), loss=torch.sum).fingerprint == wanted


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.drop, self.scale, self.unread = nn.Linear(3, 3), nn.Dropout(0.1), 2.0, 1
        self.settings, self.sizes = {"scale": 3}, [1, 2]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.drop(self.a(x)) * self.scale * self.settings["scale"] * self.sizes[0] * SCALE
        return made


CHANGED: dict[str, tuple[Callable[[Plain], object], Callable[[Plain], object], str]] = {
    "a number of a layer": (
        lambda m: setattr(m.drop, "p", 0.2),
        lambda m: setattr(m.drop, "p", 0.1),
        "'drop.p' is 0.2, but was 0.1",
    ),
    "a number": (lambda m: setattr(m, "scale", 4.0), lambda m: setattr(m, "scale", 2.0), "'scale' is 4.0, but was 2.0"),
    "an item": (
        lambda m: m.settings.update(scale=4),
        lambda m: m.settings.update(scale=3),
        "\"settings['scale']\" is 4, but was 3",
    ),
    "an item of a list": (
        lambda m: m.sizes.__setitem__(0, 5),
        lambda m: m.sizes.__setitem__(0, 1),
        "'sizes[0]' is 5, but was 1",
    ),
    "a global": (
        lambda m: globals().update(SCALE=3.0),
        lambda m: globals().update(SCALE=2.0),
        f"the global 'SCALE' of {__name__} is 3.0, but was 2.0",
    ),
    "eval mode": (lambda m: m.eval(), lambda m: m.train(), "'training' is False, but was True"),
    "a layer's eval mode": (
        lambda m: m.drop.eval(),
        lambda m: m.drop.train(),
        "'drop.training' is False, but was True",
    ),
    "requires_grad": (
        lambda m: m.a.weight.requires_grad_(False),
        lambda m: m.a.weight.requires_grad_(),
        "requires_grad of 'a.weight' is False, but was True",
    ),
}


def frozen(work: ss.Workload, graph: ss.OperatorGraph) -> FrozenValues:
    return FrozenValues(work, graph, lambda: capture_again(work, graph))


@pytest.mark.parametrize("case", CHANGED)
def test_a_value_that_changes_after_the_capture_is_refused(case: str) -> None:
    change, undo, said = CHANGED[case]
    work = ss.Workload(Plain(), (X,), loss=torch.sum)
    graph = ss.capture(work)
    values = frozen(work, graph)
    change(work.model)  # type: ignore[arg-type]
    try:
        with pytest.raises(CaptureError) as error:
            values.check()
        assert said in str(error.value)
        assert str(error.value).endswith("set it back, or capture and parallelize anew")
        with pytest.raises(CaptureError):
            frozen(work, graph)
    finally:
        undo(work.model)  # type: ignore[arg-type]
    values.check()


def test_a_step_and_an_evaluation_say_what_has_changed() -> None:
    work, topology = ss.Workload(Plain(), (X,), loss=torch.sum), ss.Topology.parse("cpu:1x1")
    work.model.drop.eval()  # type: ignore[union-attr]
    graph = ss.capture(work)
    strategy = ss.baselines.data_parallel(graph, topology)
    parallel = ss.parallelize(work, graph, topology, strategy, transport=alone())
    parallel.step(X)
    parallel.evaluate(X)
    assert not work.model.drop.training  # type: ignore[union-attr]
    parallel.step(X)
    work.model.eval()
    parallel.evaluate(X)
    with pytest.raises(ss.SoapstoneError, match="'training' is False, but was True when the model was captured"):
        parallel.step(X)
    work.model.scale = 3.0  # type: ignore[assignment]
    with pytest.raises(ss.SoapstoneError, match=r"'scale' is 3\.0, but was 2\.0 when the model was captured"):
        parallel.evaluate(X)


def test_values_that_forward_does_not_read_may_change() -> None:
    work = ss.Workload(Plain(), (X,), loss=torch.sum)
    values = frozen(work, ss.capture(work))
    work.model.unread = 2  # type: ignore[assignment]
    work.model.new = 3  # type: ignore[assignment]
    work.model.a.eval()  # type: ignore[union-attr]
    values.check()


def test_a_value_that_has_only_the_name_of_one_that_forward_reads_may_change() -> None:
    work = ss.Workload(Stateful(lambda self, x: x.dtype.itemsize), (X,), loss=torch.sum)
    work.model.dtype = "none"  # type: ignore[assignment]
    values = frozen(work, ss.capture(work))
    work.model.dtype = "float32"  # type: ignore[assignment]
    values.check()
    values.check()


def test_an_evaluation_is_captured_without_gradients() -> None:
    work, topology = ss.Workload(Stateful(asks_for_gradients), (X,), loss=torch.sum), ss.Topology.parse("cpu:1x1")
    graph = ss.capture(work)
    strategy = ss.baselines.data_parallel(graph, topology)
    parallel = ss.parallelize(work, graph, topology, strategy, transport=alone())
    with torch.no_grad():
        wanted = work.model(X)
    assert torch.allclose(parallel.evaluate(X), wanted)


def reads_the_environment(self: Stateful, x: torch.Tensor) -> Any:
    return float(os.environ.get("SCALE_OF_A_TEST", 1))


def test_a_variable_of_the_environment_that_forward_reads_may_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    work = ss.Workload(Stateful(reads_the_environment), (X,), loss=torch.sum)
    values = frozen(work, ss.capture(work))
    values.check()
    monkeypatch.setenv("SCALE_OF_A_TEST", "2")
    with pytest.raises(CaptureError, match=r"variable 'SCALE_OF_A_TEST' is '2', but was None when the model was"):
        values.check()


def test_a_saved_graph_knows_what_forward_read(tmp_path: Path) -> None:
    work = ss.Workload(Plain(), (X,), loss=torch.sum)
    ss.capture(work).save(tmp_path / "graph.json")
    graph = ss.OperatorGraph.load(tmp_path / "graph.json")
    frozen(work, graph).check()
    work.model.drop.p = 0.2  # type: ignore[union-attr]
    with pytest.raises(CaptureError, match=r"'drop.p' is 0\.2, but was 0\.1"):
        frozen(work, graph)


def test_a_file_is_read_once_at_the_capture(tmp_path: Path) -> None:
    path = tmp_path / "scale"
    path.write_text("2")
    work = ss.Workload(Stateful(lambda self, x: float(path.read_text())), (X,), loss=torch.sum)
    graph = ss.capture(work)
    path.write_text("3")
    frozen(work, graph).check()
    assert ss.capture(work).fingerprint != graph.fingerprint


def test_all_ranks_hear_that_one_may_not_evaluate() -> None:
    models, topology = [Plain(), Plain()], ss.Topology.parse("cpu:1x2")
    models[1].load_state_dict(models[0].state_dict())
    graph = ss.capture(models[0], (X,), loss=torch.sum)
    strategy = ss.baselines.data_parallel(graph, topology)

    def run(rank: int, transport: ThreadTransport) -> str:
        work = ss.Workload(models[rank], (X,), loss=torch.sum)
        parallel = ss.parallelize(work, graph, topology, strategy, transport=transport)
        parallel.evaluate(X)
        transport.exchange(None)
        models[1].scale = 3.0
        with pytest.raises(ss.SoapstoneError) as error:
            parallel.evaluate(X)
        return str(error.value)

    for said in ss.run_threads(2, run, timeout=60):
        assert said.startswith("rank 1: 'scale' is 3.0, but was 2.0 when the model was captured")
