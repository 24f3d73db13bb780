"""All client streams of a node: which are open, whose turn it is, and who makes room for whom.

Clients have fair shares: of the requests under way, of a node's turns, and of the streams. One
stream is :mod:`.session`; how much is under way counts :mod:`.admission`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

from postroom.errors import Error, Invalid, Unavailable
from postroom.log_once import LogOnce
from postroom.protocol.identities import has_secret
from postroom.server.cluster.access import Role
from postroom.server.cluster.admission import Admission, Limits
from postroom.server.cluster.large_frames import LargeFrames
from postroom.server.cluster.session import Session
from postroom.server.cluster.session_node import Node
from postroom.server.cluster.silence import Silence

_log = logging.getLogger(__name__)


class Sessions:
    """All client streams of a node.

    Attributes:
        node: whose.
        admission: how much is under way.
        said: what was logged of them.
        large_frames: those that are being decoded.
    """

    def __init__(self, node: Node, limits: Limits | None = None) -> None:
        self.node = node
        self.admission = Admission(limits or Limits())
        self.said = LogOnce()
        self.large_frames = LargeFrames(node)
        self._open: dict[bytes, Session] = {}
        self._silence = Silence(node, self._open.values)
        self._with_backlog: dict[Session, None] = {}
        node.replicas.on_room(self._work_off)

    def __len__(self) -> int:
        return len(self._open)

    # --- fair shares

    def waits(self, session: Session) -> None:
        """It has a backlog, and the next turn is to go on with it."""
        self._with_backlog[session] = None

    def _work_off(self) -> None:
        """A turn has room for reads: one request of each client that has a backlog, in turns; and
        before that, for a part of one large frame.
        """
        self.large_frames.go_on()
        waiting, replicas = self._with_backlog, self.node.replicas
        while waiting and not replicas.is_used_up:
            session = next(iter(waiting))
            del waiting[session]
            if session.work_off_one():
                waiting[session] = None
        if waiting:
            self.node.wake(urgent=True)

    def check_unread(self, session: Session) -> None:
        """A client, or all together, may have left too much unread."""
        limits, unread = self.admission.limits, session.unread_bytes
        if unread > max(limits.unread_bytes_end, limits.unread_bytes_max):
            session.cut(Unavailable(
                f"{unread} bytes of answers were not read; what was not answered may or may not "
                "have been done: read the answers, or ask for less at a time"
            ))  # fmt: skip
        elif self.admission.unread_bytes > limits.unread_bytes_all:
            self.cut_the_worst()

    def cut_the_worst(self) -> None:
        """All clients together have left too much unread: who has left most is cut off."""
        worst = max(self._open.values(), key=lambda session: session.unread_bytes)
        worst.cut(Unavailable(
            f"this node has {self.admission.unread_bytes} bytes of answers that clients have not "
            "read, and this one has left the most of them; what was not answered may or may not "
            "have been done: read the answers"
        ))  # fmt: skip

    def look(self) -> None:
        """Called now and then: who takes none of its answers for long is cut off."""
        limits = self.admission.limits
        since = self.node.monotonic() - limits.unread_seconds_max
        for session in list(self._open.values()):
            if session.takes_nothing_since() < since:
                session.cut(Unavailable(
                    f"no answer was read for {limits.unread_seconds_max:g} s; what was not "
                    "answered may or may not have been done: read the answers"
                ))  # fmt: skip

    def _make_room(self, newcomer: Session) -> bool:
        """One stream ends that is needed least; false: none may.

        Of the host that has most of them; one that wants nothing and has been silent for a while,
        or, if that host has more than its share, at least none whose requests are being done.
        """
        by_host = Counter(session.host for session in self._open.values())
        host, most = by_host.most_common(1)[0]
        hosts = len(by_host) + (newcomer.host not in by_host)
        has_too_many = host != newcomer.host and most > self.admission.limits.streams_max // hosts
        silent_since = self.node.monotonic() - self.admission.limits.silent_seconds
        least, chosen = (2, 0.0), None
        for session in self._open.values():
            rank = session.wants(), session.heard_at
            may_go = (session.host == host and has_too_many) or (
                rank[0] == 0 and rank[1] <= silent_since
            )
            if may_go and rank < least:
                least, chosen = rank, session
        if chosen is not None:
            chosen.end(Unavailable(
                "this node makes room for another client; nothing was changed: connect again",
                retry_after=1.0,
            ))  # fmt: skip
        return chosen is not None

    # --- streams

    def open(self, peer: str, on_output: Callable[[], None], role: Role = Role.WRITE) -> Session:
        """A stream has been opened.

        Args:
            peer: by whom, for the log.
            on_output: called when there is something to ``take``; not again before all was taken.
            role: what the client may do.
        """
        return Session(self, peer, on_output, role)

    def admit(self, session: Session) -> bool:
        """The session has said whose it is: the client's older ones end. Whether it may go on."""
        older = self._open.get(session.client)
        is_known = self._silence.awaits(session.client) or (older is not None and older.is_proven)
        if is_known and has_secret(session.client) and not session.is_proven:
            session.end(Invalid("this is the id of another client"))
            return False
        is_newer = older is None or session.stream > older.stream
        if older is not None and not is_newer and session.is_proven == older.is_proven:
            session.end(Invalid("a newer stream of this client is open"))
            return False
        if older is not None:
            older.gone(Invalid("the client has opened a newer stream"))
        streams_max = self.admission.limits.streams_max
        if len(self._open) >= streams_max and not self._make_room(session):
            session.end(Unavailable(
                f"this node serves {streams_max} clients and takes no more", retry_after=1.0
            ))  # fmt: skip
            return False
        self._open[session.client] = session
        self._silence.opened(session.client)
        self.admission.clients = len(self._open)
        return True

    def knows(self, client: bytes) -> bool:
        """Whether a client of this id is here, or may come back and find what it holds."""
        return client in self._open or self._silence.awaits(client)

    def closed(self, session: Session) -> None:
        """It has ended."""
        self._with_backlog.pop(session, None)
        self.large_frames.forget(session)
        if self._open.get(session.client) is session:
            del self._open[session.client]
            self._silence.closed(session)
            self.admission.clients = len(self._open)

    def tell_nodes(self) -> None:
        """The nodes are others now. All clients are told: of those that one knows from before, none
        may be left when it next loses its stream.
        """
        for session in self._open.values():
            session.welcome()

    def end_all(self, reason: Error) -> None:
        """The node stops: each client is told, and goes elsewhere."""
        for session in list(self._open.values()):
            session.end(reason)
