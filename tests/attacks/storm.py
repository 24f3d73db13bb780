"""Connections as fast as this process can make them, to somebody who has nothing to say to them.

``python storm.py HOST:PORT ATTEMPTS`` makes so many at least, and goes on until its standard input
ends. It says ``began`` after the first ones and ``reached`` when there were so many. In the end it
says how many were tried, how many came through, and in how many seconds. In turns a connection is
closed at once (by a reset), says something that is no protocol, or says half of a greeting of TLS.
Each fourth one says nothing and stays until hundreds of others have come after it.

Only the standard library is needed here: the machine is busy enough.
"""

from __future__ import annotations

import select
import socket
import struct
import sys
import time
from collections import deque

BATCH = 100
STAY = 300
"""The number of silent connections that are kept."""
SAID = (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"")
RESET = struct.pack("ii", 1, 0)


def attempts(address: tuple[str, int]) -> list[socket.socket]:
    """Begin some connections, all at the same time."""
    begun = []
    for _ in range(BATCH):
        one = socket.socket()
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)  # its port is free at once
        one.connect_ex(address)
        begun.append(one)
    return begun


def come_through(begun: list[socket.socket]) -> list[socket.socket]:
    """Return the sockets that are connected, after a moment for the others."""
    _, ready, _ = select.select([], begun, [], 0.05)
    return [one for one in ready if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)]


def storm(address: tuple[str, int], count: int) -> None:
    """Make connections until standard input ends, as the module says."""
    silent: deque[socket.socket] = deque()
    tried = connected = 0
    began, told = time.monotonic(), False
    while not told or not select.select([sys.stdin], [], [], 0)[0]:
        begun = attempts(address)
        tried += len(begun)
        through = set(come_through(begun))
        connected += len(through)
        for number, one in enumerate(begun):
            if one in through and SAID[number % 4]:
                try:
                    one.send(SAID[number % 4])
                except OSError:  # it was dropped already
                    continue
            if one in through and number % 4 == 3:
                silent.append(one)
            else:
                one.close()
        while len(silent) > STAY:
            silent.popleft().close()
        if tried == BATCH:
            sys.stdout.write("began\n")
        if tried >= count and not told:
            told = True
            sys.stdout.write("reached\n")
        sys.stdout.flush()
    for one in silent:
        one.close()
    sys.stdout.write(f"{tried} {connected} {time.monotonic() - began:.2f}\n")


if __name__ == "__main__":
    host, port = sys.argv[1].rsplit(":", 1)
    storm((host, int(port)), int(sys.argv[2]))
