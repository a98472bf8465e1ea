"""Emulates several nodes on one machine, with real links between them.

A node is a network namespace with one adapter: half of a veth pair, whose other half is a port of a switch. The switch
is a bridge in a namespace of its own. Token buckets at both halves limit what leaves and what enters the node. Ranks of
one node reach one another over its loopback interface, which has no limit. The namespaces have no names. The kernel
removes one when no process is in it and this process has closed it, so nothing is left however this process ends.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from ...errors import RankError

if TYPE_CHECKING:
    from pyroute2 import IPRoute

T = TypeVar("T")
ADAPTER = "eth0"
PORT = 29500  # always free, since nothing else runs in the namespace
BURST = 1 << 20  # bytes that may pass at once; with fewer, a coarse kernel timer would cost bandwidth
_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_libc = ctypes.CDLL(None, use_errno=True)


class MadeNodes:
    """Nodes, numbered from 0, which exist as long as the context of `made_nodes`."""

    def __init__(self, switch: int, nodes: list[int]) -> None:
        self._switch, self._nodes = switch, nodes

    def enter(self, node: int) -> None:
        """Move the calling thread into a node; in a process of one thread, the whole process."""
        _enter(self._nodes[node])

    def set_link(self, node: int, up: bool) -> None:
        """Connect a node's adapter with the switch, or take the link down."""

        def act(ip: IPRoute) -> None:
            ip.link("set", index=_index(ip, f"port{node}"), state="up" if up else "down")

        _inside(self._switch, act)


@contextmanager
def made_nodes(count: int, gbit: float | None = None) -> Iterator[MadeNodes]:
    """`count` nodes, whose adapters pass `gbit` Gb/s each way. Raises RankError without root or pyroute2."""
    _check_able()
    spaces: list[int] = []
    try:
        for _ in range(count + 1):
            spaces.append(_new_space())
        switch, *nodes = spaces
        _inside(switch, _make_switch)
        for node, space in enumerate(nodes):
            _inside(switch, partial(_plug_in, node=node, space=space, gbit=gbit))
            _inside(space, partial(_make_adapter, node=node, gbit=gbit))
        yield MadeNodes(switch, nodes)
    finally:
        for space in spaces:
            os.close(space)


def cpu_ranks(per_node: int, num_nodes: int = 1) -> list[dict[str, str]]:
    """The environment of each rank, as torchrun would set it. With several nodes, each rank must enter its node of
    `made_nodes`."""
    place = _meeting(num_nodes)
    return [
        {
            **os.environ,
            **place,
            "RANK": str(node * per_node + local),
            "WORLD_SIZE": str(num_nodes * per_node),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(per_node),
            "GROUP_RANK": str(node),
            "GROUP_WORLD_SIZE": str(num_nodes),
        }
        for node in range(num_nodes)
        for local in range(per_node)
    ]


def agents(per_node: int, num_nodes: int) -> list[dict[str, str]]:
    """The environment of one torchrun for each node, so that torchrun needs no options that describe the cluster."""
    place = _meeting(num_nodes)
    return [
        {
            **os.environ,
            **place,
            "NODE_RANK": str(node),
            "NCCL_HOSTID": f"soapstone-node-{node}",
            "PET_NNODES": str(num_nodes),
            "PET_NODE_RANK": str(node),
            "PET_NPROC_PER_NODE": str(per_node),
            "PET_LOCAL_ADDR": _address(node),  # all nodes have this machine's host name
            "PET_MASTER_ADDR": place["MASTER_ADDR"],
            "PET_MASTER_PORT": place["MASTER_PORT"],
        }
        for node in range(num_nodes)
    ]


def _meeting(num_nodes: int) -> dict[str, str]:
    """The variables that say where ranks meet and which interface they use."""
    alone = num_nodes == 1
    # torch warns that these addresses have no names
    quiet = {} if alone else {"TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")}
    interface = "lo" if alone else ADAPTER
    return quiet | {
        "MASTER_ADDR": "127.0.0.1" if alone else _address(0),
        "MASTER_PORT": str(_free_port() if alone else PORT),
        "NCCL_SOCKET_IFNAME": interface,
        "GLOO_SOCKET_IFNAME": interface,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
    }


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _address(node: int) -> str:
    return f"10.77.{(node + 1) // 256}.{(node + 1) % 256}"


def _check_able() -> None:
    try:
        import pyroute2  # noqa: F401
    except ImportError:
        raise RankError("several nodes on one machine need pyroute2; pip install 'soapstone[nodes]'") from None


def _new_space() -> int:
    """A descriptor of a new network namespace. A thread creates it, so that this process stays in its own."""

    def make() -> int:
        if _libc.unshare(_NEW_NETWORK):
            why = os.strerror(ctypes.get_errno())
            raise RankError(f"several nodes on one machine need root, or CAP_SYS_ADMIN and CAP_NET_ADMIN: {why}")
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return _in_thread(make)


def _enter(space: int) -> None:
    if _libc.setns(space, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def _inside(space: int, act: Callable[[IPRoute], T]) -> T:
    """What `act` returns, called in a namespace."""

    def run() -> T:
        from pyroute2 import IPRoute

        _enter(space)
        with IPRoute() as ip:
            return act(ip)

    return _in_thread(run)


def _in_thread(act: Callable[[], T]) -> T:
    """What `act` returns or raises, called in a thread of its own, since a namespace belongs to a thread."""
    found: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            found.append(act())
        except BaseException as error:
            raised.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    return found[0]


def _make_switch(ip: IPRoute) -> None:
    ip.link("add", ifname="switch", kind="bridge")
    ip.link("set", index=_index(ip, "switch"), state="up")


def _plug_in(ip: IPRoute, node: int, space: int, gbit: float | None) -> None:
    """A veth pair: a port of the switch here, the adapter in the node."""
    port = f"port{node}"
    ip.link("add", ifname=port, kind="veth", peer={"ifname": ADAPTER, "net_ns_fd": space})
    ip.link("set", index=_index(ip, port), master=_index(ip, "switch"), state="up")
    _limit(ip, port, gbit)


def _make_adapter(ip: IPRoute, node: int, gbit: float | None) -> None:
    ip.addr("add", index=_index(ip, ADAPTER), address=_address(node), prefixlen=16)
    for name in ("lo", ADAPTER):
        ip.link("set", index=_index(ip, name), state="up")
    _limit(ip, ADAPTER, gbit)
    with suppress(OSError):  # BBR probes for more than the bucket passes, and loses packets
        Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text("reno")


def _limit(ip: IPRoute, name: str, gbit: float | None) -> None:
    """Limit what leaves an interface to `gbit` Gb/s."""
    if gbit is not None:
        bucket: dict[str, Any] = {"rate": f"{round(gbit * 1000)}mbit", "latency": "50ms", "burst": BURST}
        ip.tc("add", "tbf", _index(ip, name), 0x10000, **bucket)


def _index(ip: IPRoute, name: str) -> int:
    return int(ip.link_lookup(ifname=name)[0])
