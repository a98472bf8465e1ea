"""Ranks use the right network interface, and listen on it only."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
from pathlib import Path

import pytest

from soapstone.errors import RankError
from soapstone.runtime import use_interface
from soapstone.runtime.transports import interfaces

LOOPBACK, OWN = ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("10.0.0.5")
OTHER, ALIAS = ipaddress.ip_address("10.0.0.9"), ipaddress.ip_address("127.0.1.1")
ROUTES = {"127.0.0.1": (LOOPBACK, LOOPBACK), "localhost": (LOOPBACK, LOOPBACK), "10.0.0.5": (OWN, OWN)}
ROUTES |= {"10.0.0.9": (OTHER, OWN), "ownname": (ALIAS, LOOPBACK), "othername": (OTHER, OWN)}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two interfaces that have an address, and an environment without torchrun's variables."""
    known: dict[str, list[interfaces.Address]] = {"lo": [LOOPBACK], "eth0": [OWN], "down0": []}
    monkeypatch.setattr(interfaces, "interfaces", lambda: known)
    monkeypatch.setattr(interfaces, "_routes", lambda host: [ROUTES[host]] if host in ROUTES else [])
    monkeypatch.setattr(interfaces, "_ours", {})
    for name in (*interfaces.VARIABLES, "MASTER_ADDR", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


CHOICES = [
    ("127.0.0.1", 4, 2, "lo"),
    ("localhost", 4, 4, "lo"),
    ("10.0.0.5", 4, 2, "eth0"),  # the first machine itself
    ("10.0.0.5", 4, 4, "lo"),
    ("10.0.0.9", 4, 2, "eth0"),
    ("othername", 4, 2, "eth0"),
    ("ownname", 4, 4, "lo"),
    ("ownname", 4, 2, None),  # other machines reach this one by another address
    ("nowhere", 4, 2, None),
]


@pytest.mark.parametrize(("master", "size", "here", "wanted"), CHOICES)
def test_the_interface_follows_from_the_first_ranks_address(
    master: str, size: int, here: int, wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("MASTER_ADDR", master), ("WORLD_SIZE", str(size)), ("LOCAL_WORLD_SIZE", str(here))):
        monkeypatch.setenv(name, value)
    assert use_interface() == wanted
    assert os.environ.get("GLOO_SOCKET_IFNAME") == wanted
    assert os.environ.get("NCCL_SOCKET_IFNAME") == (None if wanted is None else f"={wanted}")


def test_a_named_interface_counts_and_another_one_may_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert use_interface("eth0") == "eth0"
    assert use_interface("eth0") == os.environ["GLOO_SOCKET_IFNAME"] == "eth0"
    assert use_interface() == os.environ["GLOO_SOCKET_IFNAME"] == "lo"


def test_the_users_variables_win_and_may_not_contradict_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    use_interface()
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("eth0", "=lo")
    use_interface("eth0")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "=eth0"
    with pytest.raises(RankError, match="the interface is lo, but GLOO_SOCKET_IFNAME is 'eth0'; unset"):
        use_interface("lo")


@pytest.mark.parametrize(
    ("name", "problem"), [("eth7", "does not exist"), ("down0", "has no address"), ("", "does not")]
)
def test_an_interface_that_cannot_be_used_is_refused_with_those_that_can(name: str, problem: str) -> None:
    with pytest.raises(RankError, match=f"'{name}' {problem}.*; this machine has eth0 and lo"):
        use_interface(name)


LISTENING = """
import os
from pathlib import Path
from soapstone.runtime.transports import joined

def listening():
    # The addresses that this process listens on, as Linux writes them: a line's fourth word is 0A, its tenth the inode.
    own = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1].split(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]

with joined("") as (transport, _):
    found = transport.exchange(listening())
    if transport.rank == 0:
        print(found)
"""


def test_ranks_of_one_machine_listen_on_loopback_alone(tmp_path: Path) -> None:
    """So does rank 0's store; torch's own store would listen on all interfaces."""
    (tmp_path / "ranks.py").write_text(LISTENING)
    command = [sys.executable, "-m", "soapstone", "ranks", "2", "--", sys.executable, str(tmp_path / "ranks.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[['0100007F', '0100007F'], ['0100007F']]", done.stderr
