"""Algorithm 1 as the tests have it in plain Python: against its equations on random tasks, and tables worked out by
hand. The core is held against it in test_taskgraph.py."""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.reference import ReferenceTask, ReferenceTimes, play_reference

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
def test_a_timeline_satisfies_the_equations(tasks: list[ReferenceTask]) -> None:
    times = play_reference(tasks)
    served: list[list[tuple[int, int, int, int]]] = [[] for _ in range(NUM_RESOURCES)]
    for row, (task, found) in enumerate(zip(tasks, times)):
        assert found.ready == max((times[place].end for place in task.predecessors), default=0)
        ends = [begin + duration for begin, (_, duration) in zip(found.hold_starts, task.holds)]
        assert found.start == min(found.hold_starts, default=found.ready)
        assert found.end == max(ends, default=found.ready) + task.latency
        for begin, (resource, duration) in zip(found.hold_starts, task.holds):
            served[resource].append((found.ready, row, begin, duration))
    for turns in served:
        free = 0
        for turn_ready, _, begin, duration in sorted(turns):
            assert begin == max(turn_ready, free)
            free = begin + duration


class Task(NamedTuple):
    """A task by name; in a list, the earlier has the lower key."""

    name: str
    holds: dict[str, int]
    after: tuple[str, ...] = ()
    latency: int = 0


def play(tasks: list[Task]) -> dict[str, tuple[int, int, int]]:
    """(ready, start, end) of each."""
    names = [task.name for task in tasks]
    resources = list(dict.fromkeys(name for task in tasks for name in task.holds))
    rows = [
        ReferenceTask(
            key,
            tuple((resources.index(name), duration) for name, duration in task.holds.items()),
            task.latency,
            tuple(map(names.index, task.after)),
        )
        for key, task in enumerate(tasks)
    ]
    return {name: _times(found) for name, found in zip(names, play_reference(rows))}


def _times(found: ReferenceTimes) -> tuple[int, int, int]:
    return found.ready, found.start, found.end


# The paper's example in its manner: embedding e, recurrent r and linear l, each on its own GPU, for two unrolled steps.
# e takes 2, r 4, l 3; a transfer holds its link for 1. t carries e's output to r, u carries r's to l.
BEFORE_TASKS = [
    Task("e1", {"gpu0": 2}),
    Task("e2", {"gpu0": 2}),
    Task("t1", {"gpu0→gpu1": 1}, ("e1",)),
    Task("t2", {"gpu0→gpu1": 1}, ("e2",)),
    Task("r1", {"gpu1": 4}, ("t1",)),
    Task("r2", {"gpu1": 4}, ("t2", "r1")),
    Task("u1", {"gpu1→gpu2": 1}, ("r1",)),
    Task("u2", {"gpu1→gpu2": 1}, ("r2",)),
    Task("l1", {"gpu2": 3}, ("u1",)),
    Task("l2", {"gpu2": 3}, ("u2",)),
]

# e2 is ready at once but gpu0 serves e1 first. r2 has its input at 5 and its state at 7.
# Nothing else waits for a device.
BEFORE = {
    "e1": (0, 0, 2),
    "e2": (0, 2, 4),
    "t1": (2, 2, 3),
    "t2": (4, 4, 5),
    "r1": (3, 3, 7),
    "r2": (7, 7, 11),
    "u1": (7, 7, 8),
    "u2": (11, 11, 12),
    "l1": (8, 8, 11),
    "l2": (12, 12, 15),
}

# The recurrent layer in two parts of 2 each: ra stays on gpu1, rb goes to gpu0, beside the embedding, where it needs
# no transfer for its input but one (v) for its output.
AFTER_TASKS = [
    Task("e1", {"gpu0": 2}),
    Task("e2", {"gpu0": 2}),
    Task("t1", {"gpu0→gpu1": 1}, ("e1",)),
    Task("t2", {"gpu0→gpu1": 1}, ("e2",)),
    Task("ra1", {"gpu1": 2}, ("t1",)),
    Task("rb1", {"gpu0": 2}, ("e1",)),
    Task("ra2", {"gpu1": 2}, ("t2", "ra1")),
    Task("rb2", {"gpu0": 2}, ("e2", "rb1")),
    Task("u1", {"gpu1→gpu2": 1}, ("ra1",)),
    Task("v1", {"gpu0→gpu2": 1}, ("rb1",)),
    Task("u2", {"gpu1→gpu2": 1}, ("ra2",)),
    Task("v2", {"gpu0→gpu2": 1}, ("rb2",)),
    Task("l1", {"gpu2": 3}, ("u1", "v1")),
    Task("l2", {"gpu2": 3}, ("u2", "v2")),
]

# rb1 is ready at 2, but e2 came first (ready 0) and has gpu0 until 4. l1 waits for v1, the later of its two halves.
# l2 has both halves at 9 and waits for gpu2, which serves l1 until 10.
AFTER = {
    "e1": (0, 0, 2),
    "e2": (0, 2, 4),
    "t1": (2, 2, 3),
    "t2": (4, 4, 5),
    "ra1": (3, 3, 5),
    "rb1": (2, 4, 6),
    "ra2": (5, 5, 7),
    "rb2": (6, 6, 8),
    "u1": (5, 5, 6),
    "v1": (6, 6, 7),
    "u2": (7, 7, 8),
    "v2": (8, 8, 9),
    "l1": (7, 7, 10),
    "l2": (9, 10, 13),
}


@pytest.mark.parametrize(("tasks", "expected"), [(BEFORE_TASKS, BEFORE), (AFTER_TASKS, AFTER)], ids=["before", "after"])
def test_three_layer_recurrent_network(tasks: list[Task], expected: dict[str, tuple[int, int, int]]) -> None:
    assert play(tasks) == expected


def test_a_transfer_starts_on_each_link_by_itself_and_ends_with_the_last() -> None:
    times = play(
        [
            Task("busy", {"b": 10}),
            Task("two hops", {"a": 4, "b": 3}, latency=5),  # a: 0 to 4, b: 10 to 13
            Task("behind on a", {"a": 2}),  # a is free again at 4, long before "two hops" ends
            Task("behind on b", {"b": 1}, ("two hops",)),
        ]
    )
    assert times["two hops"] == (0, 0, 18)
    assert times["behind on a"] == (0, 4, 6)
    assert times["behind on b"] == (18, 18, 19)


def test_a_task_without_holds_takes_its_latency() -> None:
    assert play([Task("a", {}, latency=7), Task("b", {}, ("a",), 1)])["b"] == (7, 7, 8)


def test_what_takes_no_time_or_waits_for_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="wait for one another"):
        play_reference([ReferenceTask(0, (), 1, (1,)), ReferenceTask(1, (), 1, (0,))])
    with pytest.raises(ValueError, match="takes no time"):
        play_reference([ReferenceTask(0, ((0, 0),), 0, ())])
