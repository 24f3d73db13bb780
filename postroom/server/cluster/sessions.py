"""The client streams of a node: the open ones, their turns, and their room.

Clients have fair shares: of the requests under way, of a node's turns, and of the streams. One
stream is :mod:`.session`; :mod:`.admission` counts the load under way. Clients that fall silent
have their time (:class:`ClientTimeouts`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from postroom.errors import Error, Invalid, Unavailable
from postroom.log_once import LogOnce
from postroom.ranges.admission import Rounds
from postroom.ranges.contract import Role
from postroom.server.cluster.access import (
    WRITER,
    Access,
    changed_rights,
    permitted,
    rights_of,
)
from postroom.server.cluster.admission import Admission, NodeLimits
from postroom.server.cluster.intake import LargeFrames
from postroom.server.cluster.refusals import Refusals
from postroom.server.cluster.session import Session
from postroom.server.cluster.session_parts import SessionNode
from postroom.server.cluster.session_ranges import has_several_ranges


class Sessions:
    """The client streams of one node.

    Attributes:
        node: the node.
        admission: counts the load under way.
        said: remembers the logged messages about them.
        large_frames: the large frames that are being decoded.
        refusals: counts the refused requests.
    """

    def __init__(self, node: SessionNode, limits: NodeLimits | None = None) -> None:
        permitted(Role.ADMIN)  # made before a client waits for it: it takes many milliseconds
        self.node = node
        self.admission = Admission(limits or NodeLimits())
        self.said = LogOnce()
        self.large_frames = LargeFrames()
        self.refusals = Refusals(node)
        self._open: dict[bytes, Session] = {}
        self._timeouts = ClientTimeouts(node, self._open.values)
        self._with_backlog: Rounds[Session] = Rounds()
        node.replicas.on_room(self._work_off)
        node.on_grants = lambda: node.call_after(0.0, self._look_at_rights)
        self._tells = False
        node.on_lead_lost = self._tell_ranges_soon

    def __len__(self) -> int:
        return len(self._open)

    # --- fair shares

    def waits(self, session: Session) -> None:
        """Queue a session whose frames the next turn is to go on with."""
        self._with_backlog.add(session.principal, session)

    def _work_off(self) -> None:
        """Do waiting work of sessions while the turn has room for reads.

        Principals take turns, with one part each: a request, or a stretch of a large frame.
        """
        waiting, replicas = self._with_backlog, self.node.replicas
        while waiting and not replicas.is_used_up:
            session = waiting.pop()
            if session.go_on():
                waiting.add(session.principal, session)
        if waiting:
            self.node.wake(urgent=True)

    def check_unread(self, session: Session) -> None:
        """Cut off a client if it, or all together, have left too much unread."""
        limits, unread = self.admission.limits, session.unread_bytes
        if unread > max(limits.unread_bytes_end, limits.unread_bytes_max):
            session.cut(Unavailable(
                f"{unread} bytes of answers were not read; other requests may or may not "
                "have been done: read the answers, or ask for less at a time"
            ))  # fmt: skip
        elif self.admission.unread_bytes > limits.unread_bytes_all:
            self.cut_the_worst()

    def cut_the_worst(self) -> None:
        """Cut off the client that has left most unread, since all together have left too much."""
        worst = max(self._open.values(), key=lambda session: session.unread_bytes)
        worst.cut(Unavailable(
            f"this node has {self.admission.unread_bytes} bytes of answers that clients have not "
            "read, and this one has left the most of them; other requests may or may not "
            "have been done: read the answers"
        ))  # fmt: skip

    def look(self) -> None:
        """Cut off each client that has taken none of its answers for long. Called now and then."""
        limits = self.admission.limits
        since = self.node.monotonic() - limits.unread_seconds_max
        for session in list(self._open.values()):
            if session.takes_nothing_since() < since:
                session.cut(Unavailable(
                    f"no answer was read for {limits.unread_seconds_max:g} s; other "
                    "requests may or may not have been done: read the answers"
                ))  # fmt: skip

    def look_at_access(self) -> None:
        """End the streams of clients that would now be let in with another role, or not at all."""
        for session in list(self._open.values()):
            reason = session.access.why_not_now()
            if reason is not None:
                session.end(reason)

    def _look_at_rights(self) -> None:
        """End the streams of clients whose rights have changed. They come back with the new ones.

        Requests that wait are checked anew then.
        """
        for session in list(self._open.values()):
            if session.rights != rights_of(session.access, self.node.grants):
                session.end(changed_rights())

    def _make_room(self, newcomer: Session) -> bool:
        """End the stream that is needed least; return false if none may end.

        A stream may end if it wants nothing and has been silent for a while. If the principal with
        most streams has more than its share, each of its streams without a request in progress may
        end, too.
        """
        clients, own = self.admission.clients, newcomer.principal
        greatest = max(clients, key=clients.__getitem__)
        share = self.admission.limits.streams_max // (len(clients) + (own not in clients))
        has_too_many = greatest != own and clients[greatest] > share
        silent_since = self.node.monotonic() - self.admission.limits.silent_seconds
        least, chosen = (2, 0.0), None
        for session in self._open.values():
            rank = session.wants(), session.heard_at
            may_go = (session.principal == greatest and has_too_many) or (
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

    def open(
        self,
        peer: str,
        on_output: Callable[[], None],
        access: Access = WRITER,
    ) -> Session:
        """Open a stream.

        Args:
            peer: the address of the client, for the log.
            on_output: called when there is something to ``take``; not again before all was taken.
            access: the terms on which the client was let in.
        """
        return Session(self, peer, on_output, access)

    def refused(self, who: str, reason: str) -> None:
        """Note a client that was not let in, for the audit log."""
        self.refusals.note(who, reason)

    def admit(self, session: Session) -> bool:
        """End older streams of a session's client, now that it is known, and give it a slot.

        Returns:
            Whether the session may go on.
        """
        reason = session.access.why_not_now()  # a file may have changed since it was opened
        if reason is None and session.rights != rights_of(session.access, self.node.grants):
            reason = changed_rights()
        if reason is not None:
            session.end(reason)
            return False
        older = self._open.get(session.client)
        if older is not None and session.stream <= older.stream:
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
        self._timeouts.opened(session.client)
        self.admission.opened(session.principal)
        return True

    def closed(self, session: Session) -> None:
        """Forget a session that has ended."""
        self._with_backlog.discard(session.principal, session)
        if self._open.get(session.client) is session:
            del self._open[session.client]
            self._timeouts.closed(session)
            self.admission.closed(session.principal)

    def tell_nodes(self) -> None:
        """Tell all clients the new nodes.

        Otherwise a client might know none of the present ones when it next loses its stream.
        """
        for session in self._open.values():
            session.welcome()

    def _tell_ranges_soon(self) -> None:
        """Tell clients in a moment that the node leads fewer ranges."""
        if not self._tells:
            self._tells = True
            self.node.call_after(TOLD_TOGETHER_SECONDS, self._tell_ranges)

    def _tell_ranges(self) -> None:
        """Tell the clients with requests under way which ranges the node leads now.

        A claim that waits for all of them is not answered when one goes. Its client has to wait at
        the next leader, too.
        """
        self._tells = False
        for session in list(self._open.values()) if has_several_ranges(self.node.replicas) else ():
            if session.wants():
                session.welcome()

    def end_all(self, reason: Error) -> None:
        """End all streams, because the node stops. Each client is told, and goes to another one."""
        for session in list(self._open.values()):
            session.end(reason)


TOLD_TOGETHER_SECONDS: Final = 0.01
"""The time in which a node loses several ranges that clients are told of at once, in seconds."""
SILENT_SECONDS: Final = 5.0
"""The silence after which a client that holds something, or waits for something, has gone."""
IDLE_SECONDS: Final = 30.0
"""The silence after which any other client has gone."""
LOOK_SECONDS: Final = 0.5
"""The time between looks for silent clients."""


class ClientTimeouts:
    """The watch for silent clients on one node.

    ::

        said something ── 5 s ─▶ stream ended ─▶ its transactions' locks and claims are released
              └────── stream broke ────── 5 s ───────────┘       (or it came back)

    A client that waits for something, or holds something, says something every second; one that
    does neither looks up every ten seconds. One timer serves all streams of the node.

    Leases of queue messages are stored, and outlive the leader. The next leader has not heard of
    their consumers, or not lately, since they held nothing there. They have as much time from then
    on as if they had said something just now.

    Args:
        node: the node.
        streams: returns the open streams.
    """

    def __init__(self, node: SessionNode, streams: Callable[[], Collection[Session]]) -> None:
        self._node = node
        self._streams = streams
        self._heard_at: dict[bytes, float] = {}
        self._looks_at: float | None = None
        node.replicas.on_lease(self._took_over)

    def _took_over(self) -> None:
        """Await all clients that hold something in the stored state, since this node leads now."""
        now, absent = self._node.monotonic(), self._node.replicas.clients_that_hold()
        for stream in self._streams():
            if stream.client in absent:
                absent.discard(stream.client)
                stream.heard_at = (
                    now  # it held nothing here until now, and could be silent for long
                )
        for client in sorted(absent):
            self._heard_at[client] = now
            self._look_soon()

    def opened(self, client: bytes) -> None:
        """Stop awaiting a client that has come, or come back."""
        self._heard_at.pop(client, None)
        self._look_soon()

    def closed(self, stream: Session) -> None:
        """Await the client of a stream that has ended, if it holds something here.

        It finds that again if it comes back soon.
        """
        client = stream.client
        if self._node.replicas.holds_for(client):
            self._heard_at[client] = stream.heard_at
            self._look_soon()

    def _look_soon(self) -> None:
        if self._looks_at is None:
            self._looks_at = self._node.monotonic() + LOOK_SECONDS
            self._node.call_after(LOOK_SECONDS, self._look)

    def _look(self) -> None:
        now, planned = self._node.monotonic(), self._looks_at
        self._looks_at = None
        if planned is not None and now > planned + LOOK_SECONDS:
            self._forgive(now, now - planned)
        for stream in list(self._streams()):
            limit = SILENT_SECONDS if stream.is_busy() else IDLE_SECONDS
            if stream.heard_at + limit <= now:
                stream.gone(Unavailable(f"nothing was heard of the client for {limit:g} s"))
        for client, heard_at in list(self._heard_at.items()):
            if heard_at + SILENT_SECONDS <= now:
                del self._heard_at[client]
                self._node.replicas.release_client(client)
        if self._heard_at or self._streams():
            self._look_soon()

    def _forgive(self, now: float, seconds: float) -> None:
        """Allow for a time in which the node did not run, or was too busy, and heard no client."""
        for stream in self._streams():
            stream.heard_at = min(now, stream.heard_at + seconds)
        for client, heard_at in self._heard_at.items():
            self._heard_at[client] = min(now, heard_at + seconds)
