"""The server's end of one client stream: requests in, answers out, and their limits.

::

    frame ─▶ Session ─▶ decoded, checked ─▶ Admission ─▶ submit ··· complete ─▶ batch ─▶ frame
                │                    ▲        │ full                                  one a turn
                └─ no room ─▶ Intake ┘        └──▶ Unavailable(retry_after), at once

Each frame, and each request, takes its share of a turn. Requests are submitted as long as the
client takes its answers and the turn has room for reads. The rest, and all later frames, wait
in the session's :mod:`.intake`, packed, until answers were taken, or for the next turn, in which
all clients have their turns. A large frame is decoded there, over several turns. The answers that a
client has not read are bounded, within a frame too: first nothing more is done for it, and in the
end its stream ends.

This is plain synchronous code: a shell (:mod:`.native_server`) or a simulation moves the frames.
The shell feeds ``received``. When ``on_output`` is called it takes the output after all other
events of the moment: all answers of a turn leave in one frame. It does not read from a session
that is not ``reading``: the client takes no answers, or its requests have not had their turn.
``on_output`` is called as well when the session may be read from again, with nothing to send, and
when it has ended. Frames left then do not count any more, and the shell gives them a moment only.

A session ends with its stream, or when its client has been silent while it waits for something or
holds something. A client that lives then says something every second, also while its application is
busy (:mod:`postroom.client.routing.links`). Its waiting requests are withdrawn, and its protections
released. The locks and claims of its transactions are released when it has been silent for five
seconds, whether the stream has ended or not. A client that was only cut off, and comes back in
time, keeps them (:mod:`.sessions`). The id of a transaction tells its client.

A client's new stream ends its old one on this node before it is welcomed. No frame of the old one
is evaluated after one of the new one (:mod:`postroom.client.routing.router` relies on that).

No frame is trusted to be well-formed, in time or of sane size. A bad one ends the stream with a
reason, and does nothing else.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import msgspec

from postroom.errors import AccessDenied, Error, Invalid, Unavailable, VersionMismatch
from postroom.kv.clock import LOGICAL_BITS
from postroom.limits import (
    DECODED_BYTES_PER_STEP,
    FRAME_AT_ONCE_BYTES,
    FRAME_BYTES_PER_STEP,
    FRAME_STEPS,
    REAPED_BYTES_MAX,
    REQUEST_STEPS,
)
from postroom.log_once import LogOnce
from postroom.messaging.requests import ReapQueue
from postroom.protocol import frames
from postroom.protocol.failures import Failure, WireError, failure_from
from postroom.protocol.frames import client_of
from postroom.protocol.requests import FIRST_REVISION, RANGES_REVISION, weight_of
from postroom.ranges.access import GrantRights, RevokeRights, lacking
from postroom.ranges.audit import NoteActions
from postroom.ranges.bounds import WrongRange
from postroom.ranges.contract import Request, Role
from postroom.ranges.listing import RangeInfo
from postroom.ranges.nodes import DescribeNode
from postroom.ranges.requests import (
    CommitTransaction,
    GetForUpdate,
    Lock,
    Protect,
    ReleaseLocks,
    Unprotect,
)
from postroom.ranges.whole_protections import ProtectWhole, ReleaseWhole
from postroom.server.cluster.access import (
    ALLOWED,
    WRITER,
    Access,
    permitted,
    rights_of,
)
from postroom.server.cluster.admission import Admission
from postroom.server.cluster.answer_queue import AnswerQueue, answer_bytes, failure_bytes
from postroom.server.cluster.intake import LargeFrames, StreamIntake
from postroom.server.cluster.refusals import Refusals
from postroom.server.cluster.session_parts import (
    CLOCK_IS_AHEAD,
    IS_WITHDRAWN,
    NOT_YOURS,
    ClientCall,
    ClientProtections,
    NamingCall,
    Protecting,
    SessionNode,
    TakenBack,
    check_ranges,
    check_version,
    clock_refusal,
    failure_of,
    overload,
    too_many_protections,
    welcome_of,
)
from postroom.server.cluster.session_ranges import (
    has_several_ranges,
    shown_to,
    submit_to_range,
    welcome_steps,
)

_log = logging.getLogger(__name__)


LAST_WORDS_SECONDS: Final = 1.0
"""The time for which a client may take the rest when its session has ended; then it is cut off."""
_LOCKS: Final = frozenset({GetForUpdate, Lock})
_UNLIKE_OTHERS: Final = frozenset(
    {
        DescribeNode,
        GetForUpdate,
        GrantRights,
        Lock,
        NoteActions,
        Protect,
        ProtectWhole,
        ReapQueue,
        ReleaseWhole,
        RevokeRights,
        Unprotect,
    }
)
_GIVE_BACK: Final = frozenset({ReleaseLocks, ReleaseWhole, Unprotect})
"""The types of requests that free memory here: they are taken whatever the client's clock says.

The node takes a protection of a known timestamp, too. The client may have given it back just now,
to have it protected again.
"""


class SessionOwner(Protocol):
    """The streams of a node, as one of them knows them: see :mod:`.sessions`.

    Attributes:
        node: the node.
        admission: counts the load under way.
        said: remembers the logged messages.
        large_frames: the large frames that are being decoded.
        refusals: counts the refused requests.
    """

    node: SessionNode
    admission: Admission
    said: LogOnce
    large_frames: LargeFrames
    refusals: Refusals

    def admit(self, session: Session) -> bool:
        """Give a session whose client is known a slot; return whether it may go on."""

    def waits(self, session: Session) -> None:
        """Queue a session whose frames the next turn is to go on with."""

    def check_unread(self, session: Session) -> None:
        """Cut off a client if it, or all together, have left too much unread."""

    def closed(self, session: Session) -> None:
        """Forget a session that has ended."""


class Session:
    """A stream of a client. :meth:`.sessions.Sessions.open` makes it.

    Attributes:
        client: the id of the client, once it has said it.
        stream: the number of the stream among that client's.
        host: the address that it comes from.
        access, principal: the terms on which it was let in, and its principal (:mod:`.access`).
        rights: the rights that its requests are checked against; ``None``: its role is enough.
        heard_at: when it last gave a sign of life, on the node's monotonic clock.
        ended: whether the shell is to close the stream once everything was taken.
    """

    def __init__(
        self,
        sessions: SessionOwner,
        peer: str,
        on_output: Callable[[], None],
        access: Access = WRITER,
    ) -> None:
        self.client = b""
        self.access = access
        self.rights = rights_of(access, sessions.node.grants)
        role = access.role if self.rights is None else Role.ADMIN
        self._allowed = ALLOWED[role]
        self.stream = 0
        self.ended = False
        self.host = peer.rpartition(":")[0] or peer
        self.principal = access.principal or self.host
        self.heard_at = sessions.node.monotonic()
        self._peer = peer
        self._sessions = sessions
        self._node = sessions.node
        self._replicas = sessions.node.replicas
        self._admission = sessions.admission
        self._asked: dict[int, ClientCall] = {}
        self._answers = AnswerQueue(
            sessions.node, sessions.admission, on_output, lambda: sessions.check_unread(self)
        )
        self._say = self._answers.say
        self._own_bytes = 0
        self._waiting = 0
        self._protected = ClientProtections(self._replicas)
        self._refusal: Failure | None = None
        self._named: dict[int, tuple[int, int]] = {}
        self._knows_ranges = False
        self._permitted = permitted(role)
        self._intake = StreamIntake(self, self._permitted, sessions.large_frames)

    # --- calls of the shell

    @property
    def reading(self) -> bool:
        """Return whether the shell may read on."""
        return not (self.ended or self._intake) and self._takes_answers()

    @property
    def unread_bytes(self) -> int:
        """Return about how many bytes of answers the client has not taken."""
        return self._answers.unread_bytes

    def _takes_answers(self) -> bool:
        return self._answers.unread_bytes < self._admission.limits.unread_bytes_max

    def wants(self) -> int:
        """Return how much it has under way: 0: nothing; 1: only waiting requests; 2: more."""
        if self._intake or len(self._asked) > self._waiting:
            return 2
        return 1 if self._asked or self.unread_bytes else 0

    def takes_nothing_since(self) -> float:
        """Return when it last took any of its answers; infinity if none are left."""
        return self._answers.taken_at if self.unread_bytes else math.inf

    def received(self, frame: bytes) -> None:
        """Take a frame that has come in."""
        if self.ended:
            return
        self.heard_at = self._node.monotonic()
        if self._intake or not self._may_submit():
            self._intake.frames.append(frame)
            self._wait_for_room()
            return
        try:
            self.open_frame(frame)
        except (WireError, VersionMismatch, Unavailable) as error:
            self.malformed(error)

    def open_frame(self, frame: bytes) -> None:
        """Open a frame, which has its turn.

        Raises:
            WireError, VersionMismatch: it is malformed, or of another version.
            Unavailable: it is large, and the node has too many of those.
        """
        self._replicas.charge(FRAME_STEPS)
        if self.client and len(frame) > FRAME_AT_ONCE_BYTES:
            self._intake.begin(frame, self.heard_at)
            self._wait_for_room()
            return
        self._replicas.charge(len(frame) // FRAME_BYTES_PER_STEP)
        try:
            message = frames.from_client(frame, self._permitted.frame)
        except WireError:
            if not self.client:
                raise
            # One of its requests may be denied, and others be permitted.
            self._intake.begin(frame, self.heard_at)
            self._work_off()
            return
        if type(message) is frames.Hello:
            self._on_hello(message)
        elif type(message) is frames.Ask:
            self._on_ask(message, frame)

    def malformed(self, error: Exception) -> None:
        """End the stream because of a malformed frame."""
        self._log_closed(str(error), str(error))
        self.end(error if isinstance(error, Error) else Invalid(str(error)))

    def take(self) -> bytes | None:
        """Return the next frame to send; ``None``: there is none until ``on_output`` is called."""
        answers = self._answers
        answers.pack()
        if not answers.has_frames and self._intake:
            self._work_off()
            answers.pack()
        if not answers.has_frames:
            answers.emptied()
            return None
        if not self.reading:  # it cannot send anything, but takes answers
            self.heard_at = self._node.monotonic()
        return answers.pop()

    def end(self, reason: Error) -> None:
        """Tell the client why, and close the stream after its pending frames."""
        if not self.ended:
            self._answers.pack()
            self._answers.put(frames.encode(frames.Goodbye(failure_from(reason))))
            self.close()
            self._answers.say_last()

    def cut(self, reason: Error) -> None:
        """End a stream whose client does not read: its pending answers are dropped."""
        self._log_closed("cut", str(reason))
        self.gone(reason)

    def gone(self, reason: Error) -> None:
        """End a stream whose client may not be there any more: its pending answers are dropped."""
        self._answers.forget()
        self.end(reason)

    def _log_closed(self, kind: str, reason: str) -> None:
        now = (self._node.clock.reading() >> LOGICAL_BITS) / 1000
        self._sessions.said.log(
            _log, (self.host, kind), now,
            "the stream of client %s is closed: %s", self._peer, reason,
        )  # fmt: skip

    def close(self) -> None:
        """Forget waiting requests, and release the client's protections: the stream is over."""
        if self.ended:
            return
        self.ended = True
        self._intake.close()
        self._answers.close()
        self._own_bytes = self._waiting = 0
        asked, self._asked = self._asked, {}
        for call in asked.values():
            self._replicas.cancel(call)
            self._admission.left(call.size)
        self._sessions.closed(self)  # last: a cancelled request may have let the next one be served
        for timestamp in self._protected.to_take_back():
            self._replicas.submit(TakenBack(Unprotect(timestamp)))
        self._protected.release_client(self.client)

    def is_busy(self) -> bool:
        """Return whether its client waits for something, or holds something."""
        held = self._replicas.holds_for(self.client) or self._protected.holds_for(self.client)
        return bool(self._asked or self._intake or self._protected or held)

    # --- input

    def _on_hello(self, hello: frames.Hello) -> None:
        if self.client:
            raise WireError("a second Hello")
        check_version(hello.version)
        self.client, self.stream = client_of(hello.secret), hello.stream
        self._knows_ranges = hello.revision >= RANGES_REVISION
        check_ranges(self._replicas, hello.revision)
        if self._sessions.admit(self):
            self.welcome()

    def welcome(self) -> None:
        """Send the leader and the addresses of the nodes."""
        self._replicas.charge(welcome_steps(self._replicas))
        requests_max = self._admission.limits.stream_requests_max
        self._answers.put(welcome_of(self._node, requests_max, self.rights))

    def _on_ask(self, ask: frames.Ask[Any], frame: bytes) -> None:
        if not self.client:
            raise WireError("no Hello before the first request")
        if not self._knows_ranges:
            check_ranges(self._replicas, FIRST_REVISION)
        if ask.requests:
            # One of the requests may free what a withdrawn one waits for, which would then take it
            # for no caller. Another request may have released the claim or lock of such a
            # transaction already.
            self.on_head(ask)
            self._on_requests(ask, frame)
        elif ask.looks_up:
            self.welcome()
        if ask.withdrawn:
            self.withdraw(ask.withdrawn)

    def on_head(self, ask: frames.Ask[Any]) -> None:
        """Take the fields of a frame other than its requests."""
        if ask.looks_up:
            self.welcome()
        if ask.withdrawn:
            self.withdraw(ask.withdrawn)
        self._refusal = clock_refusal(self._node.clock, ask.clock)
        if ask.ranges or self._named:
            self._named = {number: (named, at) for number, named, at in ask.ranges}

    def _on_requests(self, ask: frames.Ask[Any], frame: bytes) -> None:
        share = len(frame) // len(ask.requests)
        for index, (number, request) in enumerate(ask.requests):
            if self.ended:
                return
            if not self._may_submit():
                self._intake.begin(frame, self.heard_at, ask, index)
                self._wait_for_room()
                return
            weight = weight_of(request)
            self._replicas.charge(REQUEST_STEPS + weight // DECODED_BYTES_PER_STEP)
            self.take_on(number, request, share + weight)

    def _may_submit(self) -> bool:
        unread_max = self._admission.limits.unread_bytes_max
        return self._answers.unread_bytes < unread_max and not self._replicas.is_used_up

    def _wait_for_room(self) -> None:
        """Go on with waiting frames when answers were taken, or with the next turn."""
        if self._takes_answers() and not self.ended:
            self._sessions.waits(self)
            self._node.wake(urgent=True)

    def _work_off(self) -> None:
        """Do as much of the waiting work as may be done now."""
        while self._intake and not self.ended and self._may_submit():
            self.go_on()
        if self._intake:
            self._wait_for_room()

    def go_on(self) -> bool:
        """Do the next part of the waiting work, and return whether it wants another turn."""
        intake = self._intake
        if intake and not self.ended and self._takes_answers():
            self.heard_at = self._node.monotonic()  # it is not read from until all of it is done
            try:
                self._replicas.charge(intake.go_on(self.heard_at))
            except (WireError, VersionMismatch, Unavailable) as error:
                self.malformed(error)
            if not intake:
                self._answers.nudge()  # its last request may wait: it is read from meanwhile
        return bool(intake) and not self.ended and self._takes_answers()

    def reserve(self, size: int) -> Failure | None:
        """Reserve memory for decoding a request; return why it is refused, or ``None``."""
        admission = self._admission
        if not admission.admits(self.principal, len(self._asked), self._own_bytes, size):
            return failure_from(admission.refusal())
        admission.bytes += size
        self._own_bytes += size
        return None

    def release(self, size: int) -> None:
        """Release reserved memory, which counts as the request itself, or is not needed."""
        self._admission.bytes -= size
        self._own_bytes -= size

    def _refused(self, request: Request) -> Failure | None:
        """Return why the client may not send a request, whatever is stored, or ``None``.

        It has all rights that it needs, and names its own transactions and consumers.
        """
        missing = None if self.rights is None else self.rights.lacks(request)
        if missing is not None:
            return failure_from(lacking(missing))
        for name in request.own_ids:
            own_id = getattr(request, name)
            if own_id is not None and not own_id.startswith(self.client):
                return NOT_YOURS
        if type(request) is CommitTransaction and request.began > self._node.clock.last():
            return CLOCK_IS_AHEAD
        return None

    def take_on(self, number: int, request: Any, size: int) -> None:
        """Take a request, which has its turn."""
        if self.ended:
            return
        asked, admission = self._asked, self._admission
        if number in asked:
            reason = f"request {number} is under way already"
            self._log_closed("number", reason)
            self.end(Invalid(reason))
            return
        kind = type(request)
        no = self._refusal
        if no is None or kind in _GIVE_BACK or (kind is Protect and request.timestamp):
            no = overload(admission, self.principal, len(asked), self._own_bytes, size)
        if kind not in self._allowed:
            no = request.failure  # a ``NotDecoded``
        elif no is None and (kind.own_ids or self.rights is not None):
            no = self._refused(request)
        if no is not None:
            self._refuse(number, no)
        elif kind in _UNLIKE_OTHERS or self._named:
            self._on_special(number, request, size)
        else:
            call = ClientCall(self, number, request, size)
            asked[number] = call
            admission.requests += 1
            admission.bytes += size
            self._own_bytes += size
            self._waiting += call.waits
            self._replicas.submit(call)

    def _refuse(self, number: int, failure: Failure) -> None:
        if failure[0] == AccessDenied.__name__:
            self._admission.denied += 1
            self._sessions.refusals.note(self.access.who(self.host), failure[1])
        self._fail(number, failure)

    def _on_special(self, number: int, request: Any, size: int) -> None:
        named = self._named.pop(number, None)
        if type(request) is DescribeNode:
            self._replicas.charge(request.steps)
            self._say((number, self._node.describe()), 1024)
            return
        if type(request) is Protect and self._protected.count >= min(
            self._admission.limits.stream_protections_max, self._protected.free
        ):
            self._fail(number, too_many_protections(self._protected.count))
            return
        if type(request) is ReleaseWhole:
            self._protected.release(request.at, self.client)
            self._say((number, None), answer_bytes(None))
            return
        if type(request) is Unprotect and not self._protected.may_protect(request.timestamp):
            # It belongs to another client, or is gone.
            self._say((number, None), answer_bytes(None))
            return
        request = self._completed(request)
        kind: type[ClientCall] = ClientCall if named is None else NamingCall
        if type(request) in {Protect, Unprotect}:
            kind = Protecting
            self._protected.asks(request)
        self._asked[number] = call = kind(self, number, request, size)
        self._admission.entered(size)
        self._own_bytes += size
        self._waiting += call.waits
        if type(call) is NamingCall and named is not None:
            call.range_id = named[0]
            submit_to_range(self._replicas, call, named, self.rights)
        elif type(request) in _LOCKS and has_several_ranges(self._replicas):
            call.complete(None, WrongRange())  # a client has to know in which range it has a lock
        else:
            self._replicas.submit(call)

    def _completed(self, request: Any) -> Any:
        """Return a request with what the node says in the place of its client."""
        kind, replace = type(request), msgspec.structs.replace
        if kind in {Protect, ProtectWhole}:
            return replace(request, client=self.client, host=self.host)
        if kind in {GrantRights, RevokeRights}:
            is_administrator = self.access.role is Role.ADMIN
            return replace(
                request, by=self.access.who(self.host), is_administrator=is_administrator
            )
        if kind is NoteActions:
            return replace(request, through=self.access.who(self.host))
        if kind is ReapQueue and request.bytes_max > REAPED_BYTES_MAX:
            return replace(request, bytes_max=REAPED_BYTES_MAX)
        return request

    def withdraw(self, numbers: Sequence[int]) -> None:
        """Withdraw requests, which are not wanted any more."""
        self._replicas.charge(len(numbers))
        for number in numbers:
            call = self._asked.pop(number, None)
            if call is not None:
                self._replicas.cancel(call)
                self._left(call)
                self._fail(number, IS_WITHDRAWN)

    def _left(self, call: ClientCall) -> None:
        size, admission = call.size, self._admission
        admission.requests -= 1
        admission.bytes -= size
        self._own_bytes -= size
        self._waiting -= call.waits
        if type(call) is Protecting:
            self._protected.asks_no_more(call.request)

    # --- output

    def completed(self, call: ClientCall, result: Any, error: BaseException | None) -> None:
        """Send the node's answer to the client, unless the request was withdrawn."""
        number = call.number
        if self._asked.get(number) is not call:
            return  # it was withdrawn (the number may be reused), or all is over
        del self._asked[number]
        self._left(call)
        if error is not None:
            self._fail(number, failure_of(self._node, call, error, self.rights, self._peer))
            return
        if type(result) is RangeInfo:
            result = next(shown_to(self.rights, [result]), None)
        self._say((number, result), answer_bytes(result))

    def protected(self, request: Protect | Unprotect, timestamp: int) -> None:
        """Note that the node has protected, or released, a timestamp for this client."""
        if self.ended and type(request) is Protect:
            self._replicas.submit(TakenBack(Unprotect(timestamp)))
            return
        self._protected.note(request, timestamp)

    def _fail(self, number: int, failure: Failure) -> None:
        if not self.ended:  # an earlier answer may have ended it: then no answer is counted
            self._say((number, None, failure), failure_bytes(failure[2]))
