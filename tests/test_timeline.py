"""The timeline engine: against the reference on random tasks, against tables worked out by hand, and its errors."""

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from soapstone import _core
from soapstone.errors import GraphError
from soapstone.timeline import Task, Times, play
from tests.support.reference import ReferenceTask, play_reference


def play_core(tasks: list[ReferenceTask], num_resources: int) -> _core.Timeline:
    """Play tasks that stand in increasing key."""
    holds = [hold for task in tasks for hold in task.holds]
    return _core.play(
        np.array([task.key for task in tasks], np.uint64),
        np.array([task.latency for task in tasks], np.int64),
        np.array([0, *accumulate(len(task.holds) for task in tasks)], np.int32),
        np.array([resource for resource, _ in holds], np.int32),
        np.array([duration for _, duration in holds], np.int64),
        np.array([0, *accumulate(len(task.predecessors) for task in tasks)], np.int32),
        np.array([place for task in tasks for place in task.predecessors], np.int32),
        num_resources,
    )


NUM_RESOURCES = 4


@st.composite
def task_lists(draw: st.DrawFn) -> list[ReferenceTask]:
    """Random tasks in increasing key whose dependencies go both up and down the keys; short times make many ties."""
    num_tasks = draw(st.integers(0, 24))
    keys = sorted(draw(st.sets(st.integers(0, 2**64 - 1), min_size=num_tasks, max_size=num_tasks)))
    before = draw(st.permutations(range(num_tasks)))
    tasks: dict[int, ReferenceTask] = {}
    for place in before:
        used = draw(st.lists(st.integers(0, NUM_RESOURCES - 1), max_size=3, unique=True))
        holds = tuple((resource, draw(st.integers(0, 4))) for resource in used)
        least = 0 if any(duration for _, duration in holds) else 1
        latency = draw(st.integers(least, 3))
        predecessors = draw(st.lists(st.sampled_from(sorted(tasks)), max_size=3)) if tasks else []
        tasks[place] = ReferenceTask(keys[place], holds, latency, tuple(predecessors))
    return [tasks[place] for place in range(num_tasks)]


@given(task_lists())
def test_core_equals_the_reference_on_every_task(tasks: list[ReferenceTask]) -> None:
    expected = play_reference(tasks)
    timeline = play_core(tasks, NUM_RESOURCES)
    assert timeline.ready.tolist() == [times.ready for times in expected]
    assert timeline.start.tolist() == [times.start for times in expected]
    assert timeline.end.tolist() == [times.end for times in expected]
    assert timeline.hold_start.tolist() == [start for times in expected for start in times.hold_starts]
    assert timeline.order.tolist() == sorted(range(len(tasks)), key=lambda row: (expected[row].ready, row))
    assert timeline.makespan == max((times.end for times in expected), default=0)


@given(task_lists())
def test_a_timeline_satisfies_the_equations(tasks: list[ReferenceTask]) -> None:
    timeline = play_core(tasks, NUM_RESOURCES)
    ready, start, end = (column.tolist() for column in (timeline.ready, timeline.start, timeline.end))
    hold_starts = iter(timeline.hold_start.tolist())
    served: list[list[tuple[int, int, int, int]]] = [[] for _ in range(NUM_RESOURCES)]
    for row, task in enumerate(tasks):
        assert ready[row] == max((end[place] for place in task.predecessors), default=0)
        starts = [next(hold_starts) for _ in task.holds]
        ends = [begin + duration for begin, (_, duration) in zip(starts, task.holds)]
        assert start[row] == min(starts, default=ready[row])
        assert end[row] == max(ends, default=ready[row]) + task.latency
        for begin, (resource, duration) in zip(starts, task.holds):
            served[resource].append((ready[row], row, begin, duration))
    for turns in served:
        free = 0
        for turn_ready, _, begin, duration in sorted(turns):
            assert begin == max(turn_ready, free)
            free = begin + duration


# The paper's example in its manner: embedding e, recurrent r and linear l, each on its own GPU, for two unrolled steps.
# e takes 2, r 4, l 3; a transfer holds its link for 1. t carries e's output to r, u carries r's to l.
BEFORE_TASKS = [
    Task("e1", holds={"gpu0": 2}),
    Task("e2", holds={"gpu0": 2}),
    Task("t1", holds={"gpu0→gpu1": 1}, after=["e1"]),
    Task("t2", holds={"gpu0→gpu1": 1}, after=["e2"]),
    Task("r1", holds={"gpu1": 4}, after=["t1"]),
    Task("r2", holds={"gpu1": 4}, after=["t2", "r1"]),
    Task("u1", holds={"gpu1→gpu2": 1}, after=["r1"]),
    Task("u2", holds={"gpu1→gpu2": 1}, after=["r2"]),
    Task("l1", holds={"gpu2": 3}, after=["u1"]),
    Task("l2", holds={"gpu2": 3}, after=["u2"]),
]

# e2 is ready at once but gpu0 serves e1 first. r2 has its input at 5 and its state at 7.
# Nothing else waits for a device.
BEFORE = {
    "e1": Times(ready=0, start=0, end=2),
    "e2": Times(ready=0, start=2, end=4),
    "t1": Times(ready=2, start=2, end=3),
    "t2": Times(ready=4, start=4, end=5),
    "r1": Times(ready=3, start=3, end=7),
    "r2": Times(ready=7, start=7, end=11),
    "u1": Times(ready=7, start=7, end=8),
    "u2": Times(ready=11, start=11, end=12),
    "l1": Times(ready=8, start=8, end=11),
    "l2": Times(ready=12, start=12, end=15),
}

# The recurrent layer in two parts of 2 each: ra stays on gpu1, rb goes to gpu0, beside the embedding, where it needs
# no transfer for its input but one (v) for its output.
AFTER_TASKS = [
    Task("e1", holds={"gpu0": 2}),
    Task("e2", holds={"gpu0": 2}),
    Task("t1", holds={"gpu0→gpu1": 1}, after=["e1"]),
    Task("t2", holds={"gpu0→gpu1": 1}, after=["e2"]),
    Task("ra1", holds={"gpu1": 2}, after=["t1"]),
    Task("rb1", holds={"gpu0": 2}, after=["e1"]),
    Task("ra2", holds={"gpu1": 2}, after=["t2", "ra1"]),
    Task("rb2", holds={"gpu0": 2}, after=["e2", "rb1"]),
    Task("u1", holds={"gpu1→gpu2": 1}, after=["ra1"]),
    Task("v1", holds={"gpu0→gpu2": 1}, after=["rb1"]),
    Task("u2", holds={"gpu1→gpu2": 1}, after=["ra2"]),
    Task("v2", holds={"gpu0→gpu2": 1}, after=["rb2"]),
    Task("l1", holds={"gpu2": 3}, after=["u1", "v1"]),
    Task("l2", holds={"gpu2": 3}, after=["u2", "v2"]),
]

# rb1 is ready at 2, but e2 came first (ready 0) and has gpu0 until 4. l1 waits for v1, the later of its two halves.
# l2 has both halves at 9 and waits for gpu2, which serves l1 until 10.
AFTER = {
    "e1": Times(ready=0, start=0, end=2),
    "e2": Times(ready=0, start=2, end=4),
    "t1": Times(ready=2, start=2, end=3),
    "t2": Times(ready=4, start=4, end=5),
    "ra1": Times(ready=3, start=3, end=5),
    "rb1": Times(ready=2, start=4, end=6),
    "ra2": Times(ready=5, start=5, end=7),
    "rb2": Times(ready=6, start=6, end=8),
    "u1": Times(ready=5, start=5, end=6),
    "v1": Times(ready=6, start=6, end=7),
    "u2": Times(ready=7, start=7, end=8),
    "v2": Times(ready=8, start=8, end=9),
    "l1": Times(ready=7, start=7, end=10),
    "l2": Times(ready=9, start=10, end=13),
}


@pytest.mark.parametrize(("tasks", "expected"), [(BEFORE_TASKS, BEFORE), (AFTER_TASKS, AFTER)], ids=["before", "after"])
def test_three_layer_recurrent_network(tasks: list[Task], expected: dict[str, Times]) -> None:
    assert play(tasks) == expected


def test_a_transfer_starts_on_each_link_by_itself_and_ends_with_the_last() -> None:
    times = play(
        [
            Task("busy", holds={"b": 10}),
            Task("two hops", holds={"a": 4, "b": 3}, latency=5),  # a: 0 to 4, b: 10 to 13
            Task("behind on a", holds={"a": 2}),  # a is free again at 4, long before "two hops" ends
            Task("behind on b", holds={"b": 1}, after=["two hops"]),
        ]
    )
    assert times["two hops"] == Times(ready=0, start=0, end=18)
    assert times["behind on a"] == Times(ready=0, start=4, end=6)
    assert times["behind on b"] == Times(ready=18, start=18, end=19)


def test_a_task_without_holds_takes_its_latency() -> None:
    assert play([Task("a", latency=7), Task("b", latency=1, after=["a"])])["b"] == Times(ready=7, start=7, end=8)


def test_equal_ready_times_are_served_by_key_not_by_place() -> None:
    times = play([Task("late", holds={"gpu": 5}, key=9), Task("early", holds={"gpu": 2}, key=3)])
    assert times == {"early": Times(0, 0, 2), "late": Times(0, 2, 7)}


def test_no_tasks_make_an_empty_timeline() -> None:
    assert play([]) == {}


def test_a_task_is_hashable() -> None:
    assert len({Task("a", holds={"gpu": 1}), Task("a", holds={"gpu": 1}), Task("b", latency=1)}) == 2


BAD_TASKS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "no time": ([{"name": "a", "holds": {"gpu": 0}}], "task 'a': takes no time"),
    "negative": ([{"name": "a", "holds": {"gpu": -1}, "latency": 3}], "task 'a': has a negative time"),
    "large key": ([{"name": "a", "latency": 1, "key": 2**64}], "task 'a': key 18446744073709551616"),
    "unknown name": ([{"name": "a", "latency": 1, "after": ["b"]}], "task 'a': comes after 'b', which is not"),
    "same name": ([{"name": "a", "latency": 1}, {"name": "a", "latency": 2}], "two tasks are named 'a'"),
    "same key": (
        [{"name": "a", "latency": 1, "key": 1}, {"name": "b", "latency": 1}],
        "tasks 'a' and 'b' have the key",
    ),
    "itself": ([{"name": "a", "latency": 1, "after": ["a"]}], "wait for one another: 'a' before 'a'"),
    "cycle": (
        [{"name": "a", "latency": 1, "after": ["b"]}, {"name": "b", "latency": 1, "after": ["a"]}],
        "tasks wait for one another",
    ),
}


@pytest.mark.parametrize(("tasks", "sentence"), BAD_TASKS.values(), ids=BAD_TASKS.keys())
def test_bad_tasks_get_a_sentence(tasks: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(GraphError, match=sentence):
        play([Task(**task) for task in tasks])


A_TASK = ReferenceTask(key=0, holds=((0, 1),), latency=0, predecessors=())

BAD_ROWS = {
    "cycle": ([ReferenceTask(0, (), 1, (1,)), ReferenceTask(1, (), 1, (0,))], "waits for itself"),
    "behind a cycle": ([ReferenceTask(0, (), 1, (1,)), ReferenceTask(1, (), 1, (1,))], "row 1 .* waits for itself"),
    "no time": ([A_TASK, ReferenceTask(1, ((0, 0),), 0, ())], "row 1 .* takes no time"),
    "negative hold": ([ReferenceTask(0, ((0, -1),), 5, ())], "row 0 .* negative hold"),
    "negative latency": ([ReferenceTask(0, ((0, 5),), -1, ())], "row 0 .* negative latency"),
    "keys": ([A_TASK, A_TASK], "row 1 .* does not increase in key"),
    "resource": ([ReferenceTask(0, ((1, 1),), 0, ())], "row 0 .* resource out of range"),
    "predecessor": ([ReferenceTask(0, (), 1, (1,))], "predecessor is out of range"),
    "too long": ([ReferenceTask(0, (), 2**62, ()), ReferenceTask(1, (), 2**62, ())], "row 1 .* above 2\\^63"),
    "one too long": ([ReferenceTask(0, ((0, 2**62),), 2**62, ())], "row 0 .* longer than 2\\^63"),
}


@pytest.mark.parametrize(("tasks", "sentence"), BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_the_core_rejects_bad_rows(tasks: list[ReferenceTask], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        play_core(tasks, num_resources=1)


def test_the_core_rejects_malformed_columns() -> None:
    keys, one = np.array([1], np.uint64), np.array([1], np.int64)
    none, begin = np.array([], np.int32), np.array([0, 0], np.int32)
    no_holds = np.array([], np.int64)
    with pytest.raises(ValueError, match="hold_begin must rise"):
        _core.play(keys, one, none, none, no_holds, begin, none, 0)
    with pytest.raises(ValueError, match="predecessor_begin must rise"):
        _core.play(keys, one, begin, none, no_holds, np.array([0, 3], np.int32), none, 0)
    with pytest.raises(ValueError, match="one latency a key"):
        _core.play(keys, no_holds, begin, none, no_holds, begin, none, 0)
    with pytest.raises(ValueError, match="one hold_duration"):
        _core.play(keys, one, begin, none, one, begin, none, 0)
    with pytest.raises(ValueError, match="num_resources is negative"):
        _core.play(keys, one, begin, none, no_holds, begin, none, -1)


def test_the_reference_rejects_what_the_core_rejects() -> None:
    with pytest.raises(ValueError, match="wait for one another"):
        play_reference([ReferenceTask(0, (), 1, (1,)), ReferenceTask(1, (), 1, (0,))])
    with pytest.raises(ValueError, match="takes no time"):
        play_reference([ReferenceTask(0, ((0, 0),), 0, ())])
