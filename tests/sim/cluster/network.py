"""The network between machines, and between machines and clients: packets, and streams of them.

Places are names: ``node 1``, ``client 3``. Every pair has a link in each direction, which may be
cut by itself. Frames between nodes travel as *packets*: each is lost, doubled and delayed by
itself, so they overtake each other. Bytes between a client and a node travel on a :class:`Stream`,
as on TCP: nothing is lost, doubled or overtaken while it lasts. Bytes that are sent into a link
that is cut wait until that is mended, or until the stream breaks. Each end hears of that at its own
time, or not at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random  # noqa: TID251 - passed in, as an instance
from typing import Final

from tests.sim.agenda import Agenda

Place = str

BREAK_SECONDS: Final = 0.5
"""The least time that a stream stands a link that is cut; it breaks within three times that."""


CONNECT_SECONDS: Final = 1.0
"""The time that an attempt to connect is given through a link that is cut."""


@dataclass(slots=True)
class Weather:
    """The badness of the network. Shares are between 0 and 1."""

    lost_share: float = 0.0
    doubled_share: float = 0.0
    delay_seconds_min: float = 0.0001
    delay_seconds_max: float = 0.0006


CALM: Final = Weather()


class Network:
    """The network between machines and clients.

    Attributes:
        weather: of the links between nodes; what comes to streams is only its delays.
    """

    def __init__(self, agenda: Agenda, randomness: Random) -> None:
        self.weather = CALM
        self._agenda = agenda
        self._random = randomness
        self._cut: set[tuple[Place, Place]] = set()
        self._streams: list[Stream] = []

    # --- links

    def cut(self, source: Place, target: Place) -> None:
        """Let nothing get from ``source`` to ``target`` any more."""
        self._cut.add((source, target))
        for stream in list(self._streams):
            stream.link_was_cut()

    def mend(self, source: Place, target: Place) -> None:
        """Mend the link."""
        self._cut.discard((source, target))
        for stream in list(self._streams):
            stream.flush()

    def mend_all(self) -> None:
        """Mend all links, and calm the weather."""
        self.weather = CALM
        self._cut.clear()
        for stream in list(self._streams):
            stream.flush()

    def is_cut(self, source: Place, target: Place) -> bool:
        """Return whether nothing gets from ``source`` to ``target``."""
        return (source, target) in self._cut

    def is_stuck(self, one: Place, other: Place) -> bool:
        """Return whether nothing gets to and fro between two places."""
        return self.is_cut(one, other) or self.is_cut(other, one)

    def delay(self) -> float:
        """Return how long something takes that sets out now."""
        weather = self.weather
        spread = weather.delay_seconds_max - weather.delay_seconds_min
        return weather.delay_seconds_min + spread * self._random.random() ** 2

    # --- packets

    def carry(self, source: Place, target: Place, arrive: Callable[[], object]) -> None:
        """Send a packet; ``arrive`` is called each time it comes."""
        weather, chance = self.weather, self._random.random
        copies = 1 + (chance() < weather.doubled_share)
        for _ in range(copies):
            if (source, target) not in self._cut and chance() >= weather.lost_share:
                self._agenda.after(self.delay(), lambda: self._arrive(source, target, arrive))

    def _arrive(self, source: Place, target: Place, arrive: Callable[[], object]) -> None:
        if (source, target) not in self._cut:
            arrive()

    # --- streams

    def open_stream(self, one: Place, other: Place) -> tuple[End, End]:
        """Open a stream between two places: the end at each of them."""
        stream = Stream(self, self._agenda, self._random, one, other)
        self._streams.append(stream)
        return stream.ends

    def forget(self, stream: Stream) -> None:
        """Forget a stream that is over; only :class:`Stream` calls it."""
        if stream in self._streams:
            self._streams.remove(stream)


class End:
    """One end of a stream.

    Attributes:
        on_bytes: called with what arrives.
        on_broken: called once, when this end has noticed that the stream is over.
    """

    def __init__(self, stream: Stream, place: Place) -> None:
        self.place = place
        self.is_open = True
        self.on_bytes: Callable[[bytes], object] = lambda _: None
        self.on_broken: Callable[[], object] = lambda: None
        self.waiting: deque[bytes] = deque()
        self.last_arrival = 0.0
        self._stream = stream

    @property
    def peer(self) -> Place:
        """Return where the other end is."""
        return self._stream._peer(self).place

    def send(self, data: bytes) -> None:
        """Send ``data`` to the other end, which may never get it."""
        if self.is_open:
            self._stream.send(self, data)

    def close(self) -> None:
        """Close this end; the other one hears of it, unless the link is cut."""
        if self.is_open:
            self._stream.close(self)


class Stream:
    """A stream of packets between two ends; see :class:`End`."""

    def __init__(
        self, network: Network, agenda: Agenda, randomness: Random, one: Place, other: Place
    ) -> None:
        self._network = network
        self._agenda = agenda
        self._random = randomness
        self._breaks = False
        self.ends = End(self, one), End(self, other)

    def send(self, end: End, data: bytes) -> None:
        """Send from ``end`` to the other one."""
        peer = self._peer(end)
        if end.waiting or self._network.is_cut(end.place, peer.place):
            end.waiting.append(data)
            self.link_was_cut()
            return
        peer.last_arrival = max(peer.last_arrival, self._agenda.now + self._network.delay())
        self._agenda.at(peer.last_arrival, lambda: self._arrive(peer, data))

    def close(self, end: End) -> None:
        """Hang up at ``end``."""
        end.is_open = False
        end.waiting.clear()
        peer = self._peer(end)
        if self._network.is_cut(end.place, peer.place):
            self.link_was_cut()
        else:
            peer.last_arrival = max(peer.last_arrival, self._agenda.now + self._network.delay())
            self._agenda.at(peer.last_arrival, lambda: self._break(peer))
        self._network.forget(self)

    def flush(self) -> None:
        """Send what has waited for a link that was mended."""
        for end in self.ends:
            peer = self._peer(end)
            if end.waiting and not self._network.is_cut(end.place, peer.place):
                waiting, end.waiting = end.waiting, deque()
                for data in waiting:
                    self.send(end, data)

    def link_was_cut(self) -> None:
        """Break the stream if the cut of its link lasts."""
        if not self._breaks and self._is_stuck():
            self._breaks = True
            for end in self.ends:
                patience = BREAK_SECONDS * (1 + 2 * self._random.random())
                self._agenda.after(patience, lambda end=end: self._lose_patience(end))

    def _lose_patience(self, end: End) -> None:
        self._breaks = False
        if self._is_stuck() or not self._peer(end).is_open:
            self._break(end)

    def _is_stuck(self) -> bool:
        one, other = self.ends
        return self._network.is_stuck(one.place, other.place)

    def _arrive(self, end: End, data: bytes) -> None:
        if end.is_open:
            end.on_bytes(data)

    def _break(self, end: End) -> None:
        if end.is_open:
            end.is_open = False
            end.waiting.clear()
            self._network.forget(self)
            end.on_broken()

    def _peer(self, end: End) -> End:
        one, other = self.ends
        return other if end is one else one
