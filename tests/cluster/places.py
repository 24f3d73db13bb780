"""The places of a test cluster's processes: loopback addresses, or network namespaces.

*Loopback* needs nothing. Each cluster has an address of its own in 127.0.0.0/8 where the system has
them (Linux). Then neither other clusters nor outgoing connections take its ports while a node is
down.

*Namespaces* need root and iproute2: one for each node, joined by a bridge that the test can reach
too. They allow what processes alone do not: cut nodes off, from all or from some, both ways or one
way, and (where the kernel has ``netem``) delay and lose packets.

::

    test ── bridge 10.x.y.254 ──┬── veth ── namespace 1, 10.x.y.1
                                └── veth ── namespace 2, 10.x.y.2
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from functools import cache
from typing import Protocol

PORT = 7400
SHARED_HOST = "127.0.0.1"
_places = itertools.count()


class Place(Protocol):
    """A place that gives nodes their addresses, and says how to start a process there."""

    def address(self, number: int) -> str:
        """Return ``host:port`` of node ``number``, from 1."""

    def command(self, number: int, command: list[str]) -> list[str]:
        """Return ``command`` in the form that runs it where that node lives."""

    def close(self) -> None:
        """Undo everything."""


class Loopback:
    """Ports of this machine.

    Attributes:
        host: the address that they are of.
    """

    def __init__(self) -> None:
        self.host = own_host()
        self._ports = _free_ports(9) if self.host == SHARED_HOST else None

    def address(self, number: int) -> str:
        port = PORT + number if self._ports is None else self._ports[number - 1]
        return f"{self.host}:{port}"

    def command(self, number: int, command: list[str]) -> list[str]:
        del number
        return command

    def close(self) -> None:
        pass


def own_host() -> str:
    """Return an address of loopback of this process's own, if the system has several.

    Clients that wait for a node of another test would come to the new owner of its port.
    """
    if not _is_bindable("127.77.0.1"):
        return SHARED_HOST
    pid, nth = os.getpid(), next(_places)
    return f"127.{64 + pid // 250 % 128}.{pid % 250 + 1}.{nth % 250 + 1}"


def _is_bindable(host: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens at; all are held at once, so that they differ."""
    probes = [socket.create_server((SHARED_HOST, 0)) for _ in range(count)]
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class Namespaces:
    """A network namespace for each node. See the module."""

    def __init__(self, count: int) -> None:
        pid, nth = os.getpid(), next(_places)
        self._count = count
        self._name = f"pr{pid % 100000}{nth}"
        self._net = f"10.{100 + pid // 250 % 100}.{(pid + nth) % 250}"
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        bridge = self._bridge
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{self._net}.254/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for number in range(1, self._count + 1):
            name, outer = self._namespace(number), self._outer(number)
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "link", "set", outer, "master", bridge, "up")
            self._inside(number, "ip", "addr", "add", f"{self._host(number)}/24", "dev", "eth0")
            self._inside(number, "ip", "link", "set", "eth0", "up")
            self._inside(number, "ip", "link", "set", "lo", "up")

    @property
    def _bridge(self) -> str:
        return f"{self._name}b"

    def _outer(self, number: int) -> str:
        return f"{self._name}v{number}"

    def _namespace(self, number: int) -> str:
        return f"{self._name}n{number}"

    def _host(self, number: int) -> str:
        return f"{self._net}.{number}"

    def _inside(self, number: int, *command: str) -> None:
        _run("ip", "netns", "exec", self._namespace(number), *command)

    def address(self, number: int) -> str:
        return f"{self._host(number)}:{PORT}"

    def command(self, number: int, command: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self._namespace(number), *command]

    # --- faults

    def isolate(self, number: int) -> None:
        """Cut a node off: it hears no other, and no other hears it."""
        _run("ip", "link", "set", self._outer(number), "down")

    def silence(self, sender: int, receiver: int) -> None:
        """Stop messages from ``sender`` to ``receiver``; those of ``receiver`` still arrive."""
        host = f"{self._host(receiver)}/32"
        self._inside(sender, "ip", "route", "replace", "blackhole", host)

    def cut(self, one: int, other: int) -> None:
        """Cut two nodes off from each other."""
        self.silence(one, other)
        self.silence(other, one)

    def rejoin(self, number: int) -> None:
        """Undo :meth:`isolate`."""
        _run("ip", "link", "set", self._outer(number), "up")

    def deafen(self, number: int) -> None:
        """Stop messages from a node to the test, and its clients."""
        self._inside(number, "ip", "route", "replace", "blackhole", f"{self._net}.254/32")

    def undeafen(self, number: int) -> None:
        """Undo :meth:`deafen`."""
        self._inside(number, "ip", "route", "del", "blackhole", f"{self._net}.254/32")

    def unsilence(self, sender: int, receiver: int) -> None:
        """Undo :meth:`silence`."""
        self._inside(sender, "ip", "route", "del", "blackhole", f"{self._host(receiver)}/32")

    def throttle(self, number: int, rate: str) -> None:
        """Let a node send over a thin line: messages wait in a queue, and are lost beyond it."""
        line = ("rate", rate, "burst", "4kb", "latency", "200ms")
        self._inside(number, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", *line)

    def unimpair(self, number: int) -> None:
        """Undo :meth:`impair` and :meth:`throttle`."""
        self._inside(number, "tc", "qdisc", "del", "dev", "eth0", "root")

    def impair(self, number: int, *netem: str) -> None:
        """Impair what a node sends: ``impair(1, "delay", "50ms", "10ms", "loss", "5%")``."""
        self._inside(number, "tc", "qdisc", "replace", "dev", "eth0", "root", "netem", *netem)

    def heal(self) -> None:
        """Let every node reach all others again, at once."""
        for number in range(1, self._count + 1):
            _run("ip", "link", "set", self._outer(number), "up")
            self._inside(number, "ip", "route", "flush", "type", "blackhole")
            if shutil.which("tc") is not None:
                _try("ip", "netns", "exec", self._namespace(number),
                     "tc", "qdisc", "del", "dev", "eth0", "root")  # fmt: skip

    def close(self) -> None:
        for number in range(1, self._count + 1):
            _try("ip", "netns", "del", self._namespace(number))
            _try("ip", "link", "del", self._outer(number))
        _try("ip", "link", "del", self._bridge)


@cache
def namespaces_work() -> bool:
    """Return whether this machine allows namespaces: root, iproute2, and a kernel with them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        Namespaces(1).close()
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


@cache
def netem_works() -> bool:
    """Return whether packets can be delayed and lost at will."""
    return _works(lambda place: place.impair(1, "delay", "1ms"))


@cache
def throttle_works() -> bool:
    """Return whether lines can be thin, which delays and loses packets too."""
    return _works(lambda place: place.throttle(1, "1mbit"))


def _works(try_it: Callable[[Namespaces], None]) -> bool:
    if not namespaces_work() or shutil.which("tc") is None:
        return False
    place = Namespaces(1)
    try:
        try_it(place)
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        place.close()
    return True


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _try(*command: str) -> None:
    """Try a command; removing a missing thing is no failure."""
    subprocess.run(command, check=False, capture_output=True)
