"""The search for leaders: the addresses, the links that exist, and those that lead to leaders.

::

    start, or lost ─▶ pause ─▶ next address ─▶ open, or look up ─▶ welcomed ─┬─ leads ─▶ target
                        ▲                              │ nothing for a second │
                        └──────────────────────────────┴──── names another ───┘

In its welcome each node says who leads the first range, as far as it knows, and which ranges it
leads itself. It says so again when asked (a look-up). While the target of a lane (:mod:`.lanes`) is
wanted, the addresses are tried in turn: those that the application
named, and those that nodes told since. They are tried once all around without a pause, then with
pauses that double. Each pause is cut short at random so that many clients do not come back at once.
A node that does not welcome in time does not delay the next. While no caller waits for anything the
pauses grow long: a node may be gone for good, and its address may one day belong to another
program.

Links to nodes that do not lead stay open: they may lead next.
"""

from __future__ import annotations

import math
import random  # noqa: TID251 - passed in, as an instance
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from postroom.client.routing.calls import Port
from postroom.client.routing.lanes import Lane, Lanes
from postroom.client.routing.links import Link
from postroom.errors import AccessDenied, Unavailable, VersionMismatch
from postroom.protocol.frames import Welcome

PAUSE_SECONDS_FIRST: Final = 0.01
LONGEST_PAUSE_SECONDS: Final = 0.2
LONGEST_IDLE_PAUSE_SECONDS: Final = 30.0
"""The longest pause while no call waits: a call that comes then ends the pause."""

_HOPELESS: Final = (AccessDenied, VersionMismatch)


class HungUp(Unavailable):
    """An error of a node that ended the connection at once: it may refuse what it was shown."""


class Addresses:
    """The addresses at which nodes may be reached.

    Args:
        seeds: the addresses that the application named.
        randomness: for the pauses.
    """

    def __init__(self, seeds: Iterable[str], randomness: random.Random) -> None:
        self._seeds = list(dict.fromkeys(seeds))
        self._random = randomness
        self._nodes: dict[int, str] = {}
        self._reasons: dict[str, Exception] = {}
        self._next = 0
        self._failures = 0

    @property
    def known(self) -> list[str]:
        """Return all addresses."""
        return list(dict.fromkeys([*self._seeds, *self._nodes.values()]))

    def learn(self, nodes: Iterable[tuple[int, str]]) -> None:
        """Note the nodes of the cluster, as one of them has told them."""
        self._nodes = dict(nodes) or self._nodes

    def of(self, node_id: int) -> str | None:
        """Return the address of a node, or ``None``."""
        return self._nodes.get(node_id)

    def next(self) -> str:
        """Return the next address to try."""
        known = self.known
        self._next += 1
        return known[(self._next - 1) % len(known)]

    def pause(self, *, idle: bool) -> float:
        """Count a failed try; return how many seconds to wait before the next one.

        Args:
            idle: whether no call waits for anything.
        """
        self._failures += 1
        rounds = self._failures - len(self.known)
        if rounds <= 0:
            return 0.0
        longest = LONGEST_IDLE_PAUSE_SECONDS if idle else LONGEST_PAUSE_SECONDS
        pause = min(PAUSE_SECONDS_FIRST * 2.0 ** min(rounds, 16), longest)
        return pause * self._random.uniform(0.5, 1.0)

    def served(self) -> None:
        """Note that a leader has answered: the pauses begin again with the next failure."""
        self._failures = 0

    def welcomed(self, address: str) -> None:
        """Note that a node has answered at ``address``."""
        self._reasons.pop(address, None)

    def failed(self, address: str, reason: Exception | None) -> None:
        """Note that the stream to ``address`` has ended, or could not be opened."""
        if reason is not None:
            self._reasons[address] = reason

    def hopeless(self) -> Exception | None:
        """Return why another try makes no sense; ``None``: it makes sense."""
        reasons = [self._reasons.get(address) for address in self.known]
        if reasons and all(isinstance(reason, _HOPELESS) for reason in reasons):
            return reasons[0]
        return None

    def hung_up(self) -> bool:
        """Return whether every node hangs up."""
        return all(isinstance(self._reasons.get(address), HungUp) for address in self.known)

    def unwelcome(self) -> AccessDenied:
        """Return the error for :meth:`hung_up`."""
        return AccessDenied(
            "every node hangs up before anything is said; nothing was changed: give "
            "connect(tls=...) with a certificate that they accept, or connect(insecure=True) "
            f"if they have none ({self.connection_errors()})"
        )

    def connection_errors(self) -> str:
        """Return what failed at each address, for an error's message."""
        told = {each: self._reasons[each] for each in self.known if each in self._reasons}
        return in_words(told) or f"asked {', '.join(self.known)}"


def in_words(reasons: Mapping[str, object]) -> str:
    """Return why addresses do not answer, for an error's message: each reason once.

    Args:
        reasons: by address.
    """
    addresses: dict[str, list[str]] = {}
    for address, reason in reasons.items():
        # A refusal begins with the address; without it, the refusals of all nodes are the same.
        addresses.setdefault(str(reason).removeprefix(f"{address} "), []).append(address)
    return "; ".join(f"{', '.join(those)}: {reason}" for reason, those in addresses.items())


PATIENCE_SECONDS: Final = 1.0
"""The time after which the next address is tried as well, in seconds."""


class SearchTimes(NamedTuple):
    """The times of a search.

    Attributes:
        monotonic: returns seconds that never go back.
        arm: called with the time at which ``tick`` is wanted.
    """

    monotonic: Callable[[], float]
    arm: Callable[[float], None]


class Search:
    """The search for the nodes that lead.

    Args:
        lanes: the lanes, whose targets are searched for.
        addresses: those to try.
        port: opens links.
        times: the clock, and the alarm.
        secret: the secret of the client.
        is_idle: returns whether no caller waits for a leader.

    Attributes:
        links: the links that are open, or being opened, by number.
        newest: the newest link that each node has welcomed; it has ended the older ones.
    """

    def __init__(
        self,
        lanes: Lanes,
        addresses: Addresses,
        port: Port,
        times: SearchTimes,
        secret: bytes,
        is_idle: Callable[[], bool],
    ) -> None:
        self.links: dict[int, Link] = {}
        self.newest: dict[int, int] = {}
        self._lanes = lanes
        self._addresses = addresses
        self._port = port
        self._monotonic, self._arm = times
        self._secret = secret
        self._is_idle = is_idle
        self._opened = 0
        self._at = math.inf

    def start(self) -> None:
        """Begin."""
        self._next_at(self._monotonic())

    @property
    def is_on(self) -> bool:
        """Return whether the target of a lane is searched for."""
        return self._at < math.inf

    def any_ready(self) -> Link | None:
        """Return a link to any node that is ready, or ``None``."""
        return next((each for each in self.links.values() if each.ready), None)

    # --- news

    def welcomed(self, link: Link, message: Welcome) -> list[Lane]:
        """Note who leads, as a node says; return the lanes whose target ``link`` is from now on.

        The ranges of which the node tells have lanes already.
        """
        self._addresses.learn(message.nodes)
        self._addresses.welcomed(link.address)
        if not link.ready:
            self.newest[message.node_id] = link.number
        link.welcomed(message.node_id, message.requests_max, message.revision)
        link.names_ranges = self._lanes.only is None
        led = self._led(message)
        for lane in [lane for lane in link.lanes if lane not in led]:
            lane.leave()
        new = [lane for lane in led if lane.target is None]
        for lane in new:
            lane.follow(link)
        wanted = self._lanes.wanted()
        if wanted and self._lanes.only is not None:
            wanted[0].hint = self._addresses.of(message.leader)
        if wanted:
            self._go_on()
        else:
            self._at = math.inf
        return new

    def _led(self, message: Welcome) -> list[Lane]:
        """Return the lanes of the ranges that a node leads."""
        only, leads_first = self._lanes.only, message.leader == message.node_id
        if only is not None:
            return [only] if leads_first else []
        by_id = self._lanes.by_id
        return [by_id[each.range_id] for each in message.leads if each.range_id in by_id]

    def denied(self, link: Link, lane: Lane, reason: Exception, leader: str | None) -> None:
        """Note that a node has refused a request because it does not lead; ``leader`` may."""
        if link is lane.target:
            lane.leave(leader)
            self._addresses.failed(link.address, reason)
            self._go_on()

    def lost(self, link: Link, reason: Exception | None) -> None:
        """Note that a link has ended."""
        del self.links[link.number]
        self._addresses.failed(link.address, reason)
        for lane in list(link.lanes):
            lane.leave()
        if self._lanes.wanted():
            self._go_on()

    # --- time

    def ranges_changed(self) -> None:
        """Begin to search if the target of a lane is wanted, since there are other lanes."""
        for link in self.links.values():
            link.names_ranges = self._lanes.only is None
        if not self.is_on and self._lanes.wanted():
            self._next_at(self._monotonic())

    def hurry(self, lane: Lane) -> None:
        """Cut a long pause short, since a call waits in ``lane``."""
        now = self._monotonic()
        if lane.target is None and self._at > now + PATIENCE_SECONDS:
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
        address = self._next_address()
        for link in self.links.values():
            if link.address == address:
                if link.ready:
                    self._look_up(link, now)
                return
        self._opened += 1
        self.links[self._opened] = link = Link(self._opened, address, self._secret, now)
        self._port.open(link.number, address)

    def _next_address(self) -> str:
        """Return the next address to try: one that was named as a leader's, if there is one."""
        for lane in self._lanes.wanted():
            if lane.hint is not None:
                hint, lane.hint = lane.hint, None
                return hint
        return self._addresses.next()

    def next_deadline(self) -> float:
        """Return when ``tick`` or ``silent`` has something to do."""
        return min([self._at, *(link.next_look() for link in self.links.values())])

    def _go_on(self) -> None:
        """Go on after a pause."""
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
