"""Which calls make one op.

Heavy calls head an op each. Walking them last to first, an op takes in what follows its exit up to the exit's
immediate post-dominator, as long as all of that is cheap and free: so every op has one exit and the fused graph has
no cycle. Calls that enlarge their input stay out, and after a combine or a statistic nothing joins that reads other
elements than its own. Cheap calls that are left fuse among themselves; shape calls that are left ride in front of each
reader, but for joints (cat, stack) that several ops read whole, which are made once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from .trace import Trace, TraceCall


@dataclass
class Group:
    """The calls of one op, in order; the head's place among them."""

    calls: list[int]
    head: int
    exit: int


def fuse(trace: Trace) -> list[Group]:
    """Groups in an order in which each comes after those that it reads."""
    return _Fusion(trace).groups()


class _Fusion:
    def __init__(self, trace: Trace) -> None:
        self.trace, self.calls = trace, trace.calls
        self.maker = {value: i for i, call in enumerate(self.calls) for value in call.outputs}
        self.users: list[list[int]] = [[] for _ in self.calls]
        for i, call in enumerate(self.calls):
            for value in call.inputs:
                if value in self.maker and i not in self.users[self.maker[value]]:
                    self.users[self.maker[value]].append(i)
        self.post_dominator = self._post_dominators()
        self.owner: dict[int, int] = {}

    def groups(self) -> list[Group]:
        heavy = [i for i, call in enumerate(self.calls) if call.rule.heavy]
        groups = [self._grow(head) for head in reversed(heavy)]
        for i, call in enumerate(self.calls):
            if i not in self.owner and (not call.rule.shape or self.trace.loss in call.outputs):
                groups.append(self._grow(i))
        groups += [self._grow(i) for i in reversed(range(len(self.calls))) if self._is_shared_joint(i)]
        groups.sort(key=lambda group: group.exit)
        for group in groups:
            group.calls = self._with_shapes(group.calls)
        return groups

    def _post_dominators(self) -> list[int]:
        """Each call's immediate post-dominator; the number of calls stands for the end."""
        end = len(self.calls)
        dominator = [end] * (end + 1)
        for i in reversed(range(end)):
            meet = -1
            for user in self.users[i]:
                meet = user if meet < 0 else self._meet(meet, user, dominator)
            dominator[i] = end if meet < 0 else meet
        return dominator

    @staticmethod
    def _meet(a: int, b: int, dominator: list[int]) -> int:
        while a != b:
            a, b = (dominator[a], b) if a < b else (a, dominator[b])
        return a

    def _grow(self, head: int) -> Group:
        members, end = {head}, head
        self.owner[head] = head
        if self.calls[head].rule.heavy and len(self.calls[head].outputs) > 1:
            return Group([head], head, head)
        while (target := self.post_dominator[end]) < len(self.calls):
            joining = self._between(end, target) | {target}
            if not all(self._may_join(i, head, end, members | joining) for i in joining):
                break
            members |= joining
            self.owner.update(dict.fromkeys(joining, head))
            end = target
        return Group(sorted(members), head, end)

    def _between(self, start: int, target: int) -> set[int]:
        found: set[int] = set()
        waiting = [user for user in self.users[start] if user != target]
        while waiting:
            i = waiting.pop()
            if i not in found:
                found.add(i)
                waiting += [user for user in self.users[i] if user != target]
        return found

    def _may_join(self, i: int, head: int, end: int, members: set[int]) -> bool:
        call = self.calls[i]
        if i in self.owner or call.rule.heavy or len(call.outputs) > 1:
            return False
        if prod(call.call.outputs[0]) > prod(self.calls[end].call.outputs[0]):
            return False
        keeps_all = self.calls[head].rule.partial or any(self.calls[j].rule.statistics for j in members if j < i)
        return not keeps_all or _reads_one_to_one(call)

    def _is_shared_joint(self, i: int) -> bool:
        """Is it a free call that puts tensors together for more than one op? Where some op takes a part of them out
        again, all ride, so that it need not wait for the others."""
        if i in self.owner or not self.calls[i].rule.joins or len(self.calls[i].inputs) < 2:
            return False
        readers: set[int] = set()
        waiting = list(self.users[i])
        while waiting:
            user = waiting.pop()
            call = self.calls[user]
            if call.rule.shape and prod(call.call.outputs[0]) < prod(self.calls[i].call.outputs[0]):
                return False
            if user in self.owner:
                readers.add(self.owner[user])
            else:
                waiting += self.users[user]
        return len(readers) > 1

    def _with_shapes(self, members: list[int]) -> list[int]:
        """Add the free shape calls that the members read through."""
        found, waiting = set(members), list(members)
        while waiting:
            for value in self.calls[waiting.pop()].inputs:
                maker = self.maker.get(value)
                if maker is not None and maker not in found and maker not in self.owner:
                    found.add(maker)
                    waiting.append(maker)
        return sorted(found)


def _reads_one_to_one(call: TraceCall) -> bool:
    bound, _ = call.rule.bind(call.call)
    return not any(f.mapped and f.size > 1 for read in bound.reads for axis in read for f in axis)
