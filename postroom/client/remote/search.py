"""The search for the leader: the links that exist, and the one that leads to it.

::

    start, or lost ─▶ pause ─▶ next address ─▶ open, or look up ─▶ welcomed ─┬─ leads ─▶ target
                        ▲                              │ nothing for a second │
                        └──────────────────────────────┴──── names another ───┘

In its welcome each node says who leads, as far as it knows, and says it again when asked (a
look-up). While no target is known, the addresses are tried in turn, at first without a pause, then
with growing, random ones. A node that does not welcome in time does not delay the next. While no
caller waits for anything the pauses grow long: a node may be gone for good, and its address may one
day belong to another program.

Links to nodes that do not lead stay open: they may lead next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from postroom.client.remote.addresses import Addresses
from postroom.client.remote.calls import Port
from postroom.client.remote.link import Link
from postroom.protocol.frames import Welcome

PATIENCE_SECONDS: Final = 1.0
"""The time after which the next address is tried as well, in seconds."""


class Search:
    """The search for the leader.

    Args:
        addresses: those to try.
        port: opens links.
        monotonic: returns seconds that never go back.
        secret: the secret of the client.
        arm: called with the time at which ``tick`` is wanted.
        is_idle: returns whether no caller waits for a leader.

    Attributes:
        links: the links that are open, or being opened, by number.
        target: the link to the leader; ``None``: the leader is searched for.
        newest: the newest link that each node has welcomed; it has ended the older ones.
    """

    def __init__(
        self,
        addresses: Addresses,
        port: Port,
        monotonic: Callable[[], float],
        secret: bytes,
        arm: Callable[[float], None],
        is_idle: Callable[[], bool],
    ) -> None:
        self.links: dict[int, Link] = {}
        self.target: Link | None = None
        self.newest: dict[int, int] = {}
        self._addresses = addresses
        self._port = port
        self._monotonic = monotonic
        self._secret = secret
        self._arm = arm
        self._is_idle = is_idle
        self._opened = 0
        self._hint: str | None = None
        self._at = math.inf

    def start(self) -> None:
        """Begin."""
        self._next_at(self._monotonic())

    def any_ready(self) -> Link | None:
        """Return a link to any node that is ready, or ``None``."""
        return next((each for each in self.links.values() if each.ready), None)

    # --- news

    def welcomed(self, link: Link, message: Welcome) -> bool:
        """Note who leads, as a node says; return whether this makes ``link`` the target."""
        self._addresses.learn(message.nodes)
        self._addresses.welcomed(link.address)
        if not link.ready:
            self.newest[message.node_id] = link.number
        link.welcomed(message.node_id, message.requests_max, message.revision)
        leads = message.leader == message.node_id
        if self.target is None and leads:
            self.target = link
            self._at = math.inf
            return True
        if self.target is None or (link is self.target and not leads):
            self.target = None
            self._go_on(self._addresses.of(message.leader))
        return False

    def denied(self, link: Link, reason: Exception, leader: str | None) -> None:
        """Note that a node has refused a request because it does not lead; ``leader`` may."""
        if link is self.target:
            self.target = None
            self._addresses.failed(link.address, reason)
            self._go_on(leader)

    def lost(self, link: Link, reason: Exception | None) -> None:
        """Note that a link has ended."""
        del self.links[link.number]
        self._addresses.failed(link.address, reason)
        if link is self.target:
            self.target = None
            self._go_on(None)
        elif self.target is None:
            self._go_on(self._hint)

    # --- time

    def hurry(self) -> None:
        """Cut a long pause short, since a call waits."""
        now = self._monotonic()
        if self.target is None and self._at > now + PATIENCE_SECONDS:
            self._next_at(now)

    def silent(self, now: float, *, late: bool) -> list[Link]:
        """Ask for signs of life where it is time to; return the links that gave none.

        Args:
            late: whether this client was not running for a while, so that silence means nothing.
        """
        given_up = []
        for link in self.links.values():
            if late:
                link.asked_at = now  # if it is asked
            if link.is_silent(now):
                given_up.append(link)
            elif link.is_to_look_up(now):
                self._look_up(link, now)
            if link.is_to_speak(now):
                link.spoke_at = now
                if link.speak():
                    self._port.output(link.number)
        return given_up

    def tick(self, now: float) -> None:
        """Try the next address, if it is time to."""
        if self._at > now:
            return
        self._at = now + PATIENCE_SECONDS
        address, self._hint = self._hint or self._addresses.next(), None
        for link in self.links.values():
            if link.address == address:
                if link.ready:
                    self._look_up(link, now)
                return
        self._opened += 1
        self.links[self._opened] = link = Link(self._opened, address, self._secret, now)
        self._port.open(link.number, address)

    def next_deadline(self) -> float:
        """Return when ``tick`` or ``silent`` has something to do."""
        return min([self._at, *(link.next_look() for link in self.links.values())])

    def _go_on(self, hint: str | None) -> None:
        """Go on after a pause, at ``hint`` first."""
        self._hint = hint
        now = self._monotonic()
        when = now + self._addresses.pause(idle=self._is_idle())
        if self._at > now + PATIENCE_SECONDS:
            # A long pause goes on: a node that says every ten seconds who leads would restart it
            # each time.
            when = min(when, self._at)
        self._next_at(when)

    def _next_at(self, when: float) -> None:
        self._at = when
        self._arm(when)

    def _look_up(self, link: Link, now: float) -> None:
        if link.look_up(now):
            self._port.output(link.number)
