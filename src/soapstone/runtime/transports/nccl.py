"""Ranks as processes over NCCL.

NCCL has no tags: it matches messages by order, takes those of one group together, and connects two ranks in the first
group in which they talk, which must be the same on both. So every connection is opened in one symmetric group before
the first step, each round is one group, and rounds and all-reduces go by one stream, in the one order that all ranks
share. What the ranks have to say beside tensors goes by gloo, from host to host, so that no GPU is waited for.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ...errors import RankError
from ...parts import CAPTURING
from .groups import Groups, gathered, raise_if_peer_lost, timeout_of
from .protocol import Incoming, Outgoing, Pair, Pending, Row
from .signs import shared_signs
from .watching import Watch


class NcclTransport:
    """Every rank makes one, at the same point of its program. Raises RankError where torch.distributed is not
    initialised, or a peer is gone."""

    def __init__(self, place: torch.device) -> None:
        self.groups = Groups()
        self.rank, self.size = self.groups.rank, self.groups.size
        self.place = place
        self._everyone = tuple(range(self.size))
        self._stream = torch.cuda.Stream(place)  # type: ignore[no-untyped-call]
        self._connected: set[int] = set()
        self._in_use = deque[tuple[torch.cuda.Event, list[torch.Tensor]]]()  # by the stream, until an event
        self._signs, self._timeout = shared_signs(), timeout_of(place)
        self._host = dist.new_group(backend="gloo", timeout=timedelta(seconds=self._timeout))
        self._watch = Watch(self._signs, self._stream.query, self._abort)
        self._issued, self._moved = 0, (0, time.monotonic())  # messages, and when there was a new one or none left
        self._inquiry: threading.Thread | None = None
        self._signs.at_each(self._look)
        self._signs.waits_where(self._is_waiting)
        self._signs.at_failure(self._watch.announce)

    def open(self, pairs: Iterable[Pair], meetings: Mapping[tuple[int, ...], int]) -> None:
        for ranks in self.groups.make(meetings):  # a first sum connects a group
            if self.rank in ranks:
                self.all_reduce(Row.OPENING, torch.zeros(1, device=self.place), ranks)()
        wanted = set(pairs) | self.groups.pairs_without(meetings)
        peers = sorted({sum(pair) - self.rank for pair in wanted if self.rank in pair} - self._connected)
        self._connected.update(peers)
        hello = torch.zeros(1, device=self.place)
        ops = [dist.P2POp(dist.isend, hello, peer) for peer in peers]
        ops += [dist.P2POp(dist.irecv, torch.empty_like(hello), peer) for peer in peers]
        self._issue(ops)
        self._stream.synchronize()

    def expect(self, message: Incoming) -> None:
        pass

    def round(self, number: int, outgoing: Sequence[Outgoing], incoming: Sequence[Incoming]) -> list[Pending]:
        buffers = [torch.empty(m.shape, dtype=m.dtype, device=self.place) for m in incoming]
        ops = [dist.P2POp(dist.isend, tensor.contiguous(), self._peer(target)) for _, target, tensor in outgoing]
        ops += [dist.P2POp(dist.irecv, buffer, self._peer(m.source)) for m, buffer in zip(incoming, buffers)]
        wait = self._issue(ops)
        return [self._after(wait, buffer) for buffer in buffers]

    def _peer(self, rank: int) -> int:
        if rank not in self._connected:
            raise RankError(f"ranks {self.rank} and {rank} were never connected; name the pair in Transport.open")
        return rank

    def all_reduce(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        tensor = tensor.contiguous()
        if ranks not in self.groups:
            return self._reduce_by_messages(tensor, ranks)
        wait = self._on_stream([tensor], lambda: dist.all_reduce(tensor, group=self.groups[ranks]))
        return self._after(wait, tensor)

    def _reduce_by_messages(self, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        """Everyone to everyone in one group, and everyone adds in the same order."""
        parts = {rank: tensor if rank == self.rank else torch.empty_like(tensor) for rank in ranks}
        wait = self._swap(dict.fromkeys(ranks, tensor), parts)

        def total() -> torch.Tensor:
            wait()
            found = parts[ranks[0]].clone()
            for rank in ranks[1:]:
                found += parts[rank]
            return found

        return total

    def reduce_scatter(self, row: int, rows: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        rows = rows.contiguous()
        if ranks not in self.groups:
            return self._scatter_by_messages(rows, ranks)
        own = torch.empty_like(rows[0])
        group = self.groups[ranks]
        wait = self._on_stream([own, rows], lambda: dist.reduce_scatter_tensor(own, rows.view(-1), group=group))
        return self._after(wait, own)

    def all_gather(self, row: int, tensor: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        tensor = tensor.contiguous()
        rows = tensor.new_empty((len(ranks), *tensor.shape))
        if ranks in self.groups:
            group = self.groups[ranks]
            wait = self._on_stream(
                [rows, tensor], lambda: dist.all_gather_into_tensor(rows.view(-1), tensor, group=group)
            )
            return self._after(wait, rows)
        rows[ranks.index(self.rank)] = tensor
        return self._after(self._swap(dict.fromkeys(ranks, tensor), dict(zip(ranks, rows))), rows)

    def _scatter_by_messages(self, rows: torch.Tensor, ranks: tuple[int, ...]) -> Pending:
        """Every row to its rank in one group, which adds in the ranks' order."""
        given = dict(zip(ranks, rows))
        parts = {rank: given[rank] if rank == self.rank else torch.empty_like(rows[0]) for rank in ranks}
        wait = self._swap(given, parts)

        def total() -> torch.Tensor:
            wait()
            return torch.stack([parts[rank] for rank in ranks]).sum(0)

        return total

    def _swap(self, given: Mapping[int, torch.Tensor], taken: Mapping[int, torch.Tensor]) -> Callable[[], None]:
        """Exchange a tensor with every other rank, in one group."""
        others = [rank for rank in given if rank != self.rank]
        ops = [dist.P2POp(dist.isend, given[other], self._peer(other)) for other in others]
        ops += [dist.P2POp(dist.irecv, taken[other], self._peer(other)) for other in others]
        return self._issue(ops)

    def poll(
        self, ballot: torch.Tensor, weights: torch.Tensor | None, count: int
    ) -> Callable[[], tuple[torch.Tensor, torch.Tensor | None]]:
        votes = ballot.clone()
        work = self._host.allreduce([votes])
        weights = torch.zeros(count, device=self.place) if weights is None else weights
        total = self.all_reduce(Row.WEIGHT, weights.double(), self._everyone)

        def answer() -> tuple[torch.Tensor, torch.Tensor | None]:
            self._watch.raise_if_lost()
            with raise_if_peer_lost():
                work.wait()
            return votes, total()

        return answer

    def finish(self) -> None:
        torch.cuda.current_stream(self.place).wait_stream(self._stream)
        self._in_use.clear()

    def exchange(self, value: Any) -> list[Any]:
        self._watch.raise_if_lost()
        return gathered(value, self._host)

    def note(self, doing: str) -> None:
        self._signs.doing = doing

    def fail(self, error: BaseException) -> None:
        self._signs.announce(error)

    def at_failure(self, act: Callable[[], None]) -> None:
        self._signs.at_failure(lambda _: act())

    def close(self) -> None:
        self._watch.close()
        self._signs.close()

    def _look(self) -> None:
        """Give up where nothing has moved for as long as the group waits."""
        issued, since = self._moved
        if not self._is_waiting() or issued != self._issued:
            self._moved = self._issued, time.monotonic()
        elif time.monotonic() - since > self._timeout and self._inquiry is None:  # signs go on meanwhile
            self._inquiry = threading.Thread(target=self._inquire, name="soapstone inquiry", daemon=True)
            self._inquiry.start()

    def _inquire(self) -> None:
        self._watch.lose(self._signs.why(timed_out=True))

    def _is_waiting(self) -> bool:
        """Whether something is on its way; not known while a CUDA graph is captured, which a query would break."""
        if not CAPTURING.acquire(blocking=False):
            return False
        try:
            return not self._stream.query()
        except RuntimeError:  # it was aborted
            return False
        finally:
            CAPTURING.release()

    def _issue(self, ops: list[dist.P2POp]) -> Callable[[], None]:
        """Exchange messages as one group."""
        if not ops:
            return lambda: None
        return self._on_stream([op.tensor for op in ops], lambda: [work.wait() for work in dist.batch_isend_irecv(ops)])

    def _on_stream(self, tensors: list[torch.Tensor], act: Callable[[], object]) -> Callable[[], None]:
        """Start something after all that was computed so far; return what makes later compute wait for it. Nothing
        here makes the host wait. Memory of tensors may serve others once compute waits, and not before: the host
        runs ahead of both streams, so it cannot ask what is done."""
        self._watch.raise_if_lost()
        self._issued += 1
        self._stream.wait_stream(torch.cuda.current_stream(self.place))
        with torch.cuda.stream(self._stream), raise_if_peer_lost():
            act()
            done = self._stream.record_event()
        self._in_use.append((done, tensors))

        def wait() -> None:
            torch.cuda.current_stream(self.place).wait_event(done)
            if any(event is done for event, _ in self._in_use):
                while self._in_use.popleft()[0] is not done:  # what began before it is done, too
                    pass

        return wait

    @staticmethod
    def _after(wait: Callable[[], None], tensor: torch.Tensor) -> Pending:
        def waited() -> torch.Tensor:
            wait()
            return tensor

        return waited

    def _abort(self) -> None:
        """End the kernels that wait for a rank that is gone."""
        for group in self.groups.existing():
            group._get_backend(self.place).abort()
