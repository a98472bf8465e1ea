"""Which network interface gloo and NCCL use, and the store of ranks that no torchrun has started.

By default gloo uses the interface that the host's name resolves to, and NCCL the first that is up. Neither has to reach
the other ranks. Here both use the interface that reaches MASTER_ADDR, since all ranks must reach that address anyway.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore
from torch.distributed.rendezvous import rendezvous

from ...errors import RankError
from ...files import shortened

VARIABLES = {"GLOO_SOCKET_IFNAME": "", "NCCL_SOCKET_IFNAME": "="}  # without the = NCCL takes a name for a prefix
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_ours: dict[str, str] = {}  # variables that this process has set, as opposed to the user


def use_interface(name: str | None = None) -> str | None:
    """Have gloo and NCCL use a network interface, and return its name: the given one, else the one by which this
    machine reaches MASTER_ADDR, or the loopback interface if all ranks are on this machine. Call it before
    `torch.distributed.init_process_group`. If the user has set GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME, they stay.
    Raises RankError if there is no such interface, or if one of these variables names another one."""
    given = {key: value for key in VARIABLES if (value := os.environ.get(key)) and value != _ours.get(key)}
    if name is None:
        chosen = interface_of(os.environ)
    else:
        chosen = _checked(name)
        for key, value in given.items():
            if value.removeprefix("=") != name:
                raise RankError(f"the interface is {name}, but {key} is {shortened(value)}; unset {key}")
    for key, prefix in VARIABLES.items():
        if chosen is not None and key not in given:
            _ours[key] = os.environ[key] = prefix + chosen
    return chosen


def interface_of(environment: Mapping[str, str]) -> str | None:
    """The interface that reaches MASTER_ADDR; None if it cannot be found."""
    by_address = {address: name for name, addresses in interfaces().items() for address in addresses}
    loopback = next((name for address, name in by_address.items() if address.is_loopback), None)
    for target, own in _routes(environment.get("MASTER_ADDR", "")):
        if own.is_loopback or (target in by_address and _is_one_machine(environment)):
            if _is_common(environment):
                return loopback
        elif own in by_address:
            return by_address[own]
    return None


def interfaces() -> dict[str, list[Address]]:
    """The addresses of each interface of this machine, IPv4 first; no addresses if the system does not list them."""
    found: dict[str, list[Address]] = {name: [] for _, name in socket.if_nameindex()}
    for name, address in _addresses():
        found.setdefault(name, []).append(address)
    return {name: sorted(addresses, key=lambda address: address.version) for name, addresses in found.items()}


def new_store(timeout: timedelta) -> tuple[Any, int, int]:
    """torch.distributed's store, this rank, and the number of ranks, as torchrun or the environment says. Torch's own
    store would listen on all interfaces. Without torchrun, rank 0's store listens on MASTER_ADDR only, if all machines
    resolve it to the same address."""
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == str(True)
    if os.environ.get("RANK") == "0" and not has_agent and _is_common(os.environ):
        listener = _listener(os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", ""))
        if listener is not None:
            (host, port, *_), size = listener.getsockname(), int(os.environ["WORLD_SIZE"])
            store = TCPStore(
                host, port, size, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach()
            )
            return store, 0, size
    store, number, size = next(rendezvous("env://", timeout=timeout))
    return store, number, size


def _listener(host: str, port: str) -> socket.socket | None:
    """A socket that listens on one address; None if the host is not this machine or the port is taken."""
    for target, _ in _routes(host):
        try:
            family = socket.AF_INET if target.version == 4 else socket.AF_INET6
            return socket.create_server((str(target), int(port)), family=family, backlog=1024)
        except (OSError, OverflowError, ValueError):  # the last two if the port is not a port
            continue
    return None


def _checked(name: str) -> str:
    known = interfaces()
    usable = sorted(each for each, addresses in known.items() if addresses)
    if name in usable or (name in known and not usable):
        return name
    problem = "has no address" if name in known else "does not exist"
    raise RankError(f"the network interface {shortened(name)} {problem}; this machine has {' and '.join(usable)}")


def _is_one_machine(environment: Mapping[str, str]) -> bool:
    return environment.get("WORLD_SIZE", "") == environment.get("LOCAL_WORLD_SIZE")


def _is_common(environment: Mapping[str, str]) -> bool:
    """Whether all ranks resolve MASTER_ADDR to the same address. A machine's own name often resolves to a loopback
    address on that machine, and to another one elsewhere."""
    host = environment.get("MASTER_ADDR", "")
    try:
        return _is_one_machine(environment) or host.lower() == "localhost" or _address(host) is not None
    except ValueError:
        return False


def _routes(host: str) -> list[tuple[Address, Address]]:
    """The reachable addresses of a host, each with this machine's own address on the route there. Nothing is sent:
    connecting a UDP socket only chooses a route."""
    found = []
    try:
        targets = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return []
    for family, kind, _, _, place in targets:
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(place)
                found.append((_address(str(place[0])), _address(str(probe.getsockname()[0]))))
        except (OSError, ValueError):
            continue
    return found


def _address(text: str) -> Address:
    return ipaddress.ip_address(text.partition("%")[0])


class _Row(ctypes.Structure):
    """struct ifaddrs, as far as it is read."""


_Row._fields_ = [
    ("next", ctypes.POINTER(_Row)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def _addresses() -> list[tuple[str, Address]]:
    """Interfaces and addresses, from the C library's getifaddrs."""
    try:
        library, rows = ctypes.CDLL(None), ctypes.POINTER(_Row)()
        if library.getifaddrs(ctypes.byref(rows)) != 0:
            return []
    except (OSError, AttributeError):
        return []
    found, row = [], rows
    while row:
        content = row.contents
        if content.address and (address := _read(content.address)) is not None:
            found.append((os.fsdecode(content.name), address))
        row = content.next
    library.freeifaddrs(rows)
    return found


def _read(place: int) -> Address | None:
    """The address of a Linux struct sockaddr: its family, then a port, then four bytes, or as many more and sixteen."""
    family = ctypes.c_ushort.from_address(place).value
    if family == socket.AF_INET:
        return ipaddress.IPv4Address(ctypes.string_at(place + 4, 4))
    if family == socket.AF_INET6:
        return ipaddress.IPv6Address(ctypes.string_at(place + 8, 16))
    return None
