"""A device's messages and sums, handed to the transport: by rank, and receives some time before their turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import torch

from ..parts import lengths
from .placement import Placement
from .plan import Combine, Event, Gather, Receive, Round, Sync
from .transports import Incoming, Outgoing, Pending, Row, Transport

AHEAD = 32  # receives that are posted before their turn: a sender waits for them, but to post them all takes time


class Messages:
    """All that a device's program says; `ranks` has the rank of each device."""

    def __init__(
        self, placement: Placement, program: Sequence[Event], ranks: Sequence[int], transport: Transport
    ) -> None:
        self._ranks, self._transport = ranks, transport
        rounds = [event for event in program if isinstance(event, Round)]
        received = [receive for event in rounds for receive in event.receives]
        self._incoming = {receive.row: _announced(placement, ranks, receive) for receive in received}  # in order
        self._awaited: Iterator[Incoming] = iter(())

    def begin(self) -> None:
        """A step's first message comes next."""
        self._awaited = iter(self._incoming.values())
        self._expect(AHEAD)

    def _expect(self, count: int) -> None:
        for message in islice(self._awaited, count):
            self._transport.expect(message)

    def exchange(self, event: Round, payloads: Sequence[torch.Tensor]) -> list[Pending]:
        """Send the payloads of a round; what is received in it, each on its way."""
        self._expect(len(event.receives))
        sent = zip(event.sends, payloads, strict=True)
        outgoing = [Outgoing(send.row, self._ranks[send.target], payload) for send, payload in sent]
        return self._transport.round(event.number, outgoing, [self._incoming[r.row] for r in event.receives])

    def sum(self, event: Combine | Sync, tensor: torch.Tensor) -> Pending:
        """The sum over the event's devices, perhaps in the tensor's own memory."""
        return self._transport.all_reduce(event.row, tensor, self._ranks_of(event))

    def scatter(self, event: Sync, rows: torch.Tensor) -> Pending:
        """This device's row of the sum over the event's devices, of a row for each of them."""
        return self._transport.reduce_scatter(event.row, rows, self._ranks_of(event))

    def gather(self, event: Gather, own: torch.Tensor) -> Pending:
        """What each of the event's devices gives, a row for each."""
        return self._transport.all_gather(event.row, own, self._ranks_of(event))

    def _ranks_of(self, event: Combine | Sync | Gather) -> tuple[int, ...]:
        return tuple(self._ranks[device] for device in event.devices)

    def sum_losses(self, own: torch.Tensor) -> Pending:
        """The sum over all ranks, also those that play no device."""
        return self._transport.all_reduce(Row.LOSS, own, tuple(range(self._transport.size)))


def _announced(placement: Placement, ranks: Sequence[int], receive: Receive) -> Incoming:
    flow = placement.flows[receive.flow]
    dtype = getattr(torch, placement.graph.tensors[flow.tensor].dtype)
    wire = torch.uint8 if dtype == torch.bool else dtype
    return Incoming(receive.row, ranks[receive.source], tuple(lengths(flow.hull)), wire)
