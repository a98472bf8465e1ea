"""`soapstone ranks`: runs a command on several ranks of this machine, or on several nodes that it emulates."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Annotated

import typer

from ..errors import SoapstoneError
from ..files import shortened
from .common import print_json

MOST_RANKS = 512  # each is a process
Shape = Annotated[
    str, typer.Argument(metavar="RANKS|NODESxRANKS", help="How many ranks, or how many nodes and ranks on each.")
]
Gbit = Annotated[float | None, typer.Option(min=0.001, max=1000, help="Gb/s that a node's adapter passes each way.")]
Agents = Annotated[bool, typer.Option("--agents", help="Run the command once on each node, such as torchrun.")]
Command = Annotated[list[str], typer.Argument(help="The command that each rank runs; write -- before it.")]
Statuses = Annotated[
    bool, typer.Option("--json", help="Print each exit status as JSON; what the processes print goes to stderr.")
]


def ranks(shape: Shape, command: Command, gbit: Gbit = None, agents: Agents = False, as_json: Statuses = False) -> None:
    """Run a command on several ranks of this machine, or on several nodes that it emulates.

    If the machine has a GPU, the ranks share it, each with a part of its multiprocessors, and communicate over NCCL. A
    node is a network namespace with an adapter of its own, so NODESxRANKS needs root.
    """
    num_nodes, per_node = _shape(shape)
    if shutil.which(command[0]) is None:
        raise SoapstoneError(f"there is no command {command[0]!r}")
    if num_nodes == 0 and (gbit is not None or agents):
        raise SoapstoneError("--gbit and --agents are for nodes; write NODESxRANKS, such as 2x4, for the ranks")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is cleaned up
    with _stdout_to_stderr() if as_json else nullcontext():
        found = _run(command, num_nodes, per_node, gbit, agents)
    if as_json:
        print_json({"statuses": list(found)})
    failed = [number for number, status in enumerate(found) if status]
    if failed:
        what = "agent" if agents else "rank"
        raise SoapstoneError(f"{what}{'s' if len(failed) > 1 else ''} {', '.join(map(str, failed))} failed")


def _shape(text: str) -> tuple[int, int]:
    """The numbers of nodes and of ranks on each, from "2x4" or "4"; 0 nodes means this machine without emulation."""
    found = re.fullmatch(r"(?:([1-9]\d{0,3})x)?([1-9]\d{0,3})", text, re.ASCII)
    if not found:
        raise SoapstoneError(f"the ranks are {shortened(text)}; write their number, or NODESxRANKS such as 2x4")
    num_nodes, per_node = int(found[1] or 0), int(found[2])
    if max(num_nodes, 1) * per_node > MOST_RANKS:
        raise SoapstoneError(f"{text} are more ranks than one machine can run; use {MOST_RANKS} or fewer")
    return num_nodes, per_node


def _run(command: list[str], num_nodes: int, per_node: int, gbit: float | None, agents: bool) -> list[int]:
    """The exit status of each rank or agent."""
    from ..runtime.sharing import made_nodes, run_ranks

    with ExitStack() as stack:
        environments = stack.enter_context(_environments(max(num_nodes, 1), per_node, agents))
        if num_nodes == 0:
            return run_ranks(command, environments)
        nodes = stack.enter_context(made_nodes(num_nodes, gbit))
        if agents:  # no limit, since torchrun goes on with the remaining nodes
            return run_ranks(command, environments, enter=nodes.enter, patience=math.inf)
        return run_ranks(command, environments, enter=lambda rank: nodes.enter(rank // per_node))


def _environments(num_nodes: int, per_node: int, with_agents: bool) -> AbstractContextManager[list[dict[str, str]]]:
    """The environment of each agent or rank; ranks share the GPU if there is one."""
    import torch

    from ..runtime.sharing import agents, cpu_ranks, shared_gpu

    if with_agents:
        return nullcontext(agents(per_node, num_nodes))
    return shared_gpu(per_node, num_nodes) if torch.cuda.is_available() else nullcontext(cpu_ranks(per_node, num_nodes))


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Inside the context, processes that are started print to stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
