"""Messages go in rounds that nothing holds up: by the rules of the plan, and on threads as strict as NCCL."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import pytest
import torch

import soapstone as ss
from soapstone.runtime import ThreadTransport, plan
from soapstone.runtime.ordering import Node, Order, Ordering
from soapstone.runtime.placement import Placement
from soapstone.runtime.plan import Announce, Event, Plan, Round, Run
from soapstone.runtime.rounds import cut_rounds
from soapstone.runtime.transports import Incoming, Outgoing
from tests.support.microbatches import counts_of, microbatched
from tests.support.models import ALL, captured
from tests.support.sharding import sharded
from tests.support.training import STEPS, train_threads

BURST = 16


def planned(name: str, devices: int, seed: int) -> Plan:
    topology = ss.Topology.parse(f"cpu:1x{devices}")
    strategy = sharded(ss.baselines.random(captured(name), topology, seed=seed), seed)
    simulation = ss.simulate(captured(name), topology, strategy)
    return Plan(simulation, simulation.order, devices)


def node_of(found: Plan, event: Event) -> Node:
    """What an event is a part of, on whatever device."""
    match event:
        case Run():
            return "backward" if event.backward else "forward", event.segment, event.microbatch
        case Round():
            return "round", event.number, 0
        case Announce():
            return "loss", 0, 0
    return "row", event.row, found.simulation.native.task(event.row).microbatch


def merged(found: Plan, node: Node) -> Node:
    """The round of a message, or what else happens."""
    what, index, _ = node
    return ("round", found.rounds[index], 0) if what == "row" and index in found.rounds else node


def assert_no_round_waits_for_itself(found: Plan) -> None:
    """By all that waits for something: data, and a device's own program. A round counts as one thing here, so a path
    from one of its messages to another is a circle."""
    ordering = Ordering(found.placement, found.segments, found.simulation.topology.num_devices, found.simulation.order)
    ordering.result()
    waits: dict[Node, set[Node]] = defaultdict(set)
    for node, before in ordering.after.items():
        waits[merged(found, node)].update(merged(found, other) for other in before)
    for device in range(found.simulation.topology.num_devices):
        events = [node_of(found, event) for event in found.program(device)]
        rounds = [node for node in events if node[0] == "round"]
        assert len(set(rounds)) == len(rounds), "a device has a round in two groups"
        for before_, after in pairwise(events):
            waits[after].add(before_)
    assert not any(node in before for node, before in waits.items()), "a message waits for its own round"
    TopologicalSorter(waits).prepare()  # raises CycleError


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("devices", [2, 3, 4, 8])
def test_no_round_waits_for_itself(name: str, devices: int) -> None:
    for seed in range(5):
        assert_no_round_waits_for_itself(planned(name, devices, seed))


@pytest.mark.parametrize("name", ["mlp", "cnn", "gpt", "transformer"])
@pytest.mark.parametrize("devices", [2, 4, 8])
def test_no_round_of_microbatches_waits_for_itself(name: str, devices: int) -> None:
    topology = ss.Topology.parse(f"cpu:1x{devices}")
    for seed in range(3):
        graph = captured(name)
        strategy = sharded(microbatched(graph, topology, counts_of(graph)[-1], seed), seed)
        simulation = ss.simulate(graph, topology, strategy)
        assert_no_round_waits_for_itself(Plan(simulation, simulation.order, devices))


def test_messages_of_independent_ops_share_a_round() -> None:
    found = planned("gpt", 4, 0)
    groups = [event for event in found.program(0) if isinstance(event, Round)]
    assert len(groups) < sum(len(event.sends) + len(event.receives) for event in groups)


def one_round(order: Order, placement: Placement, segment_devices: Sequence[int]) -> dict[int, int]:
    """Every message in the round of its neighbours in the whole order, whatever a rank computes between them."""
    return dict.fromkeys(cut_rounds(order, placement, segment_devices), 0)


def test_groups_of_neighbours_in_a_ranks_own_program_are_found_to_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """What NCCL's transport did before there were rounds: a group ended only where its rank computed next."""
    name, devices = "lstm", 3
    strategy = ss.baselines.random(captured(name), ss.Topology.parse(f"cpu:1x{devices}"), seed=1)
    batches = ALL[name].batches(STEPS)
    assert train_threads(ALL[name].workload, captured(name), strategy, batches)
    monkeypatch.setattr(plan, "cut_rounds", one_round)
    with pytest.raises((AssertionError, CycleError)):
        assert_no_round_waits_for_itself(planned(name, devices, 1))
    with pytest.raises(ss.SoapstoneError, match=r"in round 0|wait for one another"):
        train_threads(ALL[name].workload, captured(name), strategy, batches, timeout=1.0)


def send(transport: ThreadTransport, number: int, *rows: int) -> None:
    peer = 1 - transport.rank
    transport.round(number, [Outgoing(row, peer, torch.tensor([float(row)])) for row in rows], [])


def receive(transport: ThreadTransport, number: int, *rows: int) -> list[float]:
    incoming = [Incoming(row, 1 - transport.rank, (1,), torch.float32) for row in rows]
    return [pending().item() for pending in transport.round(number, [], incoming)]


def swap(transport: ThreadTransport, number: int, out: Sequence[int], back: Sequence[int]) -> list[float]:
    peer = 1 - transport.rank
    outgoing = [Outgoing(row, peer, torch.tensor([float(row)])) for row in out]
    incoming = [Incoming(row, peer, (1,), torch.float32) for row in back]
    return [pending().item() for pending in transport.round(number, outgoing, incoming)]


def connected(act: Callable[[ThreadTransport], None]) -> Callable[[int, ThreadTransport], None]:
    def run(rank: int, transport: ThreadTransport) -> None:
        transport.open([(0, 1)], {})
        act(transport)

    return run


def rounds(transport: ThreadTransport) -> None:
    many = list(range(BURST))
    if transport.rank == 0:
        send(transport, 0, *many)
        assert receive(transport, 1, BURST) == [BURST]
    else:
        assert receive(transport, 0, *many) == many
        send(transport, 1, BURST)


def burst(transport: ThreadTransport) -> None:
    many = list(range(BURST))
    if transport.rank == 0:
        swap(transport, 0, many, [BURST])
    else:
        for row in many:
            receive(transport, row, row)
        send(transport, BURST, BURST)


def both_ways(transport: ThreadTransport) -> None:
    rank = transport.rank
    assert swap(transport, 0, [rank, rank + 2], [1 - rank, 3 - rank]) == [1 - rank, 3 - rank]


def out_of_order(transport: ThreadTransport) -> None:
    if transport.rank == 0:
        send(transport, 0, 7, 8)
    else:
        receive(transport, 0, 8, 7)


def split_in_two(transport: ThreadTransport) -> None:
    if transport.rank == 0:
        send(transport, 0, 7, 8)
    else:
        receive(transport, 0, 7)
        receive(transport, 0, 8)


@pytest.mark.parametrize("case", [rounds, both_ways])
@pytest.mark.parametrize("strict", [True, False])
def test_groups_that_are_the_same_on_both_sides_pass(case: Callable[[ThreadTransport], None], strict: bool) -> None:
    ss.run_threads(2, connected(case), strict=strict)


@pytest.mark.parametrize("case", [burst, out_of_order, split_in_two])
def test_groups_that_nccl_would_not_end_are_refused(case: Callable[[ThreadTransport], None]) -> None:
    with pytest.raises(ss.SoapstoneError, match=r"sends .* to rank|wait for one another"):
        ss.run_threads(2, connected(case), strict=True, timeout=0.3)


def test_ranks_that_were_never_connected_may_not_talk() -> None:
    with pytest.raises(ss.SoapstoneError, match="were never connected"):
        ss.run_threads(2, lambda rank, transport: both_ways(transport), strict=True)
