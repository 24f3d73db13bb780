"""The server's end of one client stream: requests in, answers out, and what must not grow.

::

    frame ─▶ Session ─▶ decoded, checked ─▶ Admission ─▶ node.submit ··· complete ─▶ batch ─▶ frame
                                     ▲        │ full                                  one a turn
                            backlog ─┘        └──▶ Unavailable(retry_after), at once

Requests are submitted as long as the client takes its answers and the turn has room for reads; the
rest of a frame waits in the session's *backlog*: until answers were taken, or for the next turn, in
which all clients have their turns. A large frame is decoded over several turns first
(:mod:`.large_frames`). What a client does not read, within a frame too, is bounded:
first nothing more is done for it, and in the end its stream ends.

Plain synchronous code: a shell (:mod:`.native_server`) or a simulation moves the frames. It feeds
``received``; when ``on_output`` is called it takes what there is to send, after whatever else
happens now, so that all answers of a turn leave in one frame; it does not read from a session that
is not ``reading``: its client does not take its answers, or what it asked for has not had its turn.
It is called as well when the session may be read from again, with nothing to send; and when it has
ended: what is in frames by then does not count any more, so the shell gives it a moment only.

A session ends with its stream, or when its client has been silent while it waits for something or
holds something: a client that lives says something every second then, also while its application is
busy (:mod:`postroom.client.remote.link`). What still waits is withdrawn, and the protections that
it had asked for are taken back. What its transactions hold (locks, claims on messages) is released
when it has been silent for five seconds, whether the stream has ended or not: who was only cut off,
and comes back in time, keeps it (:mod:`.silence`). Whose a transaction is tells its id.

A client's new stream ends its old one on this node before it is welcomed, so that nothing sent on
the old one is evaluated after what is sent on the new one
(:mod:`postroom.client.remote.router` relies on that).

Nothing that comes in is trusted to be well-formed, in time or of sane size; what is not ends the
stream with a reason, and does nothing else.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from postroom.errors import Error, Invalid, Unavailable, VersionMismatch
from postroom.kv.clock import LOGICAL_BITS
from postroom.limits import REAPED_BYTES_MAX
from postroom.messaging.queues.requests import ClaimQueue
from postroom.messaging.requests import ReapQueue
from postroom.protocol import frames
from postroom.protocol.failures import Failure, WireError, failure_from
from postroom.protocol.identities import client_of, has_secret, is_of_client_with_secret
from postroom.protocol.requests import DescribeNode
from postroom.protocol.stretches import TooMuch, is_large
from postroom.ranges.requests import (
    CLIENT_ID_BYTES,
    CommitTransaction,
    GetForUpdate,
    Protect,
    ReleaseLocks,
    Unprotect,
)
from postroom.server.cluster.access import ALLOWED, Role, denied
from postroom.server.cluster.answer_queue import AnswerQueue
from postroom.server.cluster.answers import answer_bytes, failure_bytes
from postroom.server.cluster.asked import Asked, Protecting, TakenBack
from postroom.server.cluster.client_protections import ClientProtections
from postroom.server.cluster.session_failures import (
    CLOCK_IS_AHEAD,
    IS_WITHDRAWN,
    NOT_YOURS,
    clock_refusal,
    failure_of,
    overload,
    too_many_protections,
)
from postroom.server.cluster.session_node import welcome_of

if TYPE_CHECKING:
    from postroom.server.cluster.sessions import Sessions

_log = logging.getLogger(__name__)


LAST_WORDS_SECONDS: Final = 1.0
"""So long a client may take what is left for it when its session has ended; then it is cut off."""
_UNLIKE_OTHERS: Final = frozenset({DescribeNode, Protect, ReapQueue, Unprotect})
_OF_TRANSACTIONS: Final = frozenset({CommitTransaction, GetForUpdate, ReapQueue, ReleaseLocks})


class Session:
    """One stream of one client. Made by :meth:`.sessions.Sessions.open`.

    Attributes:
        client: who it is, once it has said so.
        stream: which of that client's streams.
        is_proven: it has shown that the client is its own.
        host: where it comes from.
        heard_at: when it last gave a sign of life, on the node's monotonic clock.
        ended: the shell is to close the stream once everything was taken.
    """

    def __init__(
        self,
        sessions: Sessions,
        peer: str,
        on_output: Callable[[], None],
        role: Role = Role.WRITE,
    ) -> None:
        self.client = b""
        self._role = role
        self._allowed = ALLOWED[role]
        self.stream = 0
        self.ended = False
        self.host = peer.rpartition(":")[0] or peer
        self.heard_at = sessions.node.monotonic()
        self._peer = peer
        self._sessions = sessions
        self._node = sessions.node
        self._submit = sessions.node.submit
        self._admission = sessions.admission
        self._asked: dict[int, Asked] = {}
        self._backlog: deque[tuple[int, Any, int]] = deque()
        self._answers = AnswerQueue(
            sessions.node, sessions.admission, on_output, lambda: sessions.check_unread(self)
        )
        self._say = self._answers.say
        self._own_bytes = 0
        self._waiting = 0
        self._protected = ClientProtections(sessions.node.replicas)
        self._names_its_own = False
        self.is_proven = False
        self._is_decoding = False
        self._behind: deque[bytes] = deque()

    # --- what the shell calls

    @property
    def reading(self) -> bool:
        """Whether the shell may read on."""
        return not (self.ended or self._backlog or self._is_decoding) and self._takes_answers()

    @property
    def unread_bytes(self) -> int:
        """About how much of answers the client has not taken."""
        return self._answers.unread_bytes

    def _takes_answers(self) -> bool:
        return self._answers.unread_bytes < self._admission.limits.unread_bytes_max

    def wants(self) -> int:
        """How much it has under way: 0: nothing; 1: what waits for something; 2: more."""
        if self._backlog or self._is_decoding or len(self._asked) > self._waiting:
            return 2
        return 1 if self._asked or self.unread_bytes else 0

    def takes_nothing_since(self) -> float:
        """When it last took anything of what there is for it."""
        return self._answers.taken_at if self.unread_bytes else math.inf

    def received(self, frame: bytes) -> None:
        """A frame has come in."""
        if self.ended:
            return
        self.heard_at = self._node.monotonic()
        if self._is_decoding:
            self._behind.append(frame)
            return
        try:
            if self.stream and is_large(frame):
                self._sessions.large_frames.begin(self, frame)
                self._is_decoding = True
                return
            message = frames.from_client(frame)
            if type(message) is frames.Ask:
                self._on_ask(message, len(frame))
            elif type(message) is frames.Hello:
                self._on_hello(message)
        except (WireError, VersionMismatch, Unavailable) as error:
            self.malformed(error)

    def decoded(self, ask: frames.Ask, frame_bytes: int) -> None:
        """A large frame is this; who was not read from meanwhile is read again."""
        self._is_decoding = False
        try:
            self._on_ask(ask, frame_bytes)
        except WireError as error:
            self.malformed(error)
        if not self.ended:
            self.welcome()
        while self._behind and not self._is_decoding:
            self.received(self._behind.popleft())

    def malformed(self, error: Exception) -> None:
        """What came in ends the stream."""
        self._log_closed(str(error), str(error))
        self.end(error if isinstance(error, Error) else Invalid(str(error)))

    def take(self) -> bytes | None:
        """The next frame to send; ``None``: nothing, until ``on_output`` is called."""
        answers = self._answers
        answers.pack()
        if not answers.has_frames and self._backlog:
            self._work_off()
            answers.pack()
        if not answers.has_frames:
            answers.emptied()
            return None
        if not self.reading:  # it cannot say anything, but takes what it is told
            self.heard_at = self._node.monotonic()
        return answers.pop()

    def end(self, reason: Error) -> None:
        """Say why, and close the stream after what is to be sent yet."""
        if not self.ended:
            self._answers.pack()
            self._answers.put(frames.encode(frames.Goodbye(failure_from(reason))))
            self.close()
            self._answers.say_last()

    def cut(self, reason: Error) -> None:
        """End a stream whose client does not read: nothing of what it was to be told is kept."""
        self._log_closed("cut", str(reason))
        self.gone(reason)

    def gone(self, reason: Error) -> None:
        """End a stream whose client may not be there any more: nothing is kept for it."""
        self._answers.forget()
        self.end(reason)

    def _log_closed(self, kind: str, reason: str) -> None:
        now = (self._node.clock.reading() >> LOGICAL_BITS) / 1000
        self._sessions.said.log(
            _log, (self.host, kind), now,
            "the stream of client %s is closed: %s", self._peer, reason,
        )  # fmt: skip

    def close(self) -> None:
        """The stream is over: forget what waits, and take back what was held for the client."""
        if self.ended:
            return
        self.ended = True
        self._is_decoding = False
        self._behind.clear()
        self._answers.close()
        self._backlog.clear()
        self._own_bytes = self._waiting = 0
        asked, self._asked = self._asked, {}
        for call in asked.values():
            self._node.cancel(call)
            self._admission.left(call.size)
        self._sessions.closed(self)  # by now: one that was cancelled may have let the next one take
        for moment in self._protected.to_take_back():
            self._submit(TakenBack(Unprotect(moment)))

    def is_busy(self) -> bool:
        """Whether its client waits for something, or holds something."""
        held = self._node.replicas.holds_for(self.client)
        at_work = self._asked or self._backlog or self._is_decoding
        return bool(at_work or self._protected or held)

    def _is_own(self, name: bytes) -> bool:
        """Whether a transaction, or a consumer, of that id may be this session's.

        A client of the first release draws all of it by itself. It may have any but those of
        another client that is here, and those of clients with a secret (:mod:`.identities`).
        """
        if self.is_proven or self._names_its_own:
            return name.startswith(self.client)
        is_others = name[:CLIENT_ID_BYTES] != self.client and self._sessions.knows(
            name[:CLIENT_ID_BYTES]
        )
        return not (is_others or is_of_client_with_secret(name))

    # --- what comes in

    def _on_hello(self, hello: frames.Hello) -> None:
        if self.stream:
            raise WireError("a second Hello")
        if hello.version != frames.PROTOCOL_VERSION:
            raise VersionMismatch(
                f"this node speaks version {frames.PROTOCOL_VERSION} of the protocol, the client "
                f"version {hello.version}; nothing was done: use the same version of Postroom"
            )
        self.is_proven = bool(hello.secret)
        may_be_anothers = hello.names_its_own and has_secret(hello.client)
        if client_of(hello.secret) != hello.client if self.is_proven else may_be_anothers:
            raise WireError("this is not the secret of this client")
        self.client, self.stream = hello.client, hello.stream
        self._names_its_own = hello.names_its_own
        if self._sessions.admit(self):
            self.welcome()

    def welcome(self) -> None:
        """Say who leads, and who the nodes are."""
        self._answers.put(welcome_of(self._node, self._admission.limits.stream_requests_max))

    def _on_ask(self, ask: frames.Ask, frame_bytes: int) -> None:
        if not self.stream:
            raise WireError("no Hello before the first request")
        if ask.looks_up:
            self.welcome()
        if ask.withdrawn and ask.requests:
            # One of the requests may free what a withdrawn one waits for, and another one have let
            # go already of what that would then take for nobody.
            self._on_withdrawn(ask.withdrawn)
        if ask.requests:
            self._on_requests(ask, frame_bytes)
        if ask.withdrawn:
            self._on_withdrawn(ask.withdrawn)

    def _on_requests(self, ask: frames.Ask, frame_bytes: int) -> None:
        refusal = clock_refusal(self._node.clock, ask.clock)
        size = frame_bytes // len(ask.requests)
        backlog = self._backlog
        for number, request in ask.requests:
            if self.ended:
                return
            if refusal is not None:
                self._fail(number, refusal)
            elif backlog or not self._may_submit():
                backlog.append((number, request, size))
            else:
                self._take_on(number, request, size)
        if backlog:
            self._wait_for_room()

    def _may_submit(self) -> bool:
        unread_max = self._admission.limits.unread_bytes_max
        return self._answers.unread_bytes < unread_max and not self._node.replicas.is_used_up

    def _wait_for_room(self) -> None:
        """The backlog goes on when answers were taken, or with the next turn."""
        if self._takes_answers() and not self.ended:
            self._sessions.waits(self)
            self._node.wake(urgent=True)

    def _work_off(self) -> None:
        """As much of the backlog as may be submitted now."""
        backlog = self._backlog
        while backlog and not self.ended and self._may_submit():
            self._take_on(*backlog.popleft())
        if backlog:
            self._wait_for_room()

    def work_off_one(self) -> bool:
        """The first request of the backlog; whether it wants another turn."""
        if self._backlog and not self.ended and self._takes_answers():
            self.heard_at = self._node.monotonic()  # it is not read from until the backlog is done
            self._take_on(*self._backlog.popleft())
            if not self._backlog:
                self._answers.nudge()  # what it asked for last may wait: it is read from meanwhile
        return bool(self._backlog) and not self.ended and self._takes_answers()

    def _may_claim(self, request: ClaimQueue) -> bool:
        """Whether consumer and transaction are this client's own."""
        if not self._is_own(request.consumer):
            return False
        transaction_id = request.transaction_id
        return transaction_id is None or self._is_own(transaction_id)

    def _take_on(self, number: int, request: Any, size: int) -> None:
        if self.ended:
            return
        asked, admission = self._asked, self._admission
        if number in asked:
            reason = f"request {number} is under way already"
            self._log_closed("number", reason)
            self.end(Invalid(reason))
            return
        kind = type(request)
        no = overload(admission, len(asked), self._own_bytes, size)
        if kind not in self._allowed:
            no = request.failure if kind is TooMuch else failure_from(denied(self._role, kind))
        if no is None and kind in _OF_TRANSACTIONS:
            if not self._is_own(request.transaction_id):
                no = NOT_YOURS
            elif kind is CommitTransaction and request.began > self._node.clock.last():
                no = CLOCK_IS_AHEAD
        elif no is None and kind is ClaimQueue and not self._may_claim(request):
            no = NOT_YOURS
        if no is not None:
            self._fail(number, no)
        elif kind in _UNLIKE_OTHERS:
            self._on_special(number, request, size)
        else:
            call = Asked(self, number, request, size)
            asked[number] = call
            admission.requests += 1
            admission.bytes += size
            self._own_bytes += size
            self._waiting += call.waits
            self._submit(call)

    def _on_special(self, number: int, request: Any, size: int) -> None:
        if type(request) is DescribeNode:
            self._say((number, self._node.describe()), 1024)
            return
        if type(request) is Protect and self._protected.count >= (
            self._admission.limits.stream_protections_max
        ):
            self._fail(number, too_many_protections(self._protected.count))
            return
        if type(request) is Protect:
            request = msgspec.structs.replace(request, client=self.client, host=self.host)
        if type(request) is Unprotect and not self._may_have_protected(request.timestamp):
            self._say((number, None), answer_bytes(None))
            return
        kind = Protecting if type(request) in {Protect, Unprotect} else Asked
        if type(request) is ReapQueue and request.bytes_max > REAPED_BYTES_MAX:
            request = msgspec.structs.replace(request, bytes_max=REAPED_BYTES_MAX)
        self._asked[number] = call = kind(self, number, request, size)
        self._admission.entered(size)
        self._own_bytes += size
        self._waiting += call.waits
        self._submit(call)

    def _may_have_protected(self, moment: int) -> bool:
        """Else the protection belongs to somebody else, or to nobody any more."""
        asked = (call.request for call in self._asked.values() if type(call) is Protecting)
        return self._protected.may_hold(moment, asked)

    def _on_withdrawn(self, numbers: list[int]) -> None:
        for number in numbers:
            call = self._asked.pop(number, None)
            if call is not None:
                self._node.cancel(call)
                self._left(call)
                self._fail(number, IS_WITHDRAWN)
        if self._backlog:
            # One look at each of both: there may be thousands of either.
            gone, waiting = frozenset(numbers), self._backlog
            self._backlog = deque(each for each in waiting if each[0] not in gone)
            for number in [number for number, _, _ in waiting if number in gone]:
                self._fail(number, IS_WITHDRAWN)

    def _left(self, call: Asked) -> None:
        size, admission = call.size, self._admission
        admission.requests -= 1
        admission.bytes -= size
        self._own_bytes -= size
        self._waiting -= call.waits

    # --- what goes out

    def completed(self, call: Asked, result: Any, error: BaseException | None) -> None:
        """The node has answered."""
        number = call.number
        if self._asked.get(number) is not call:
            return  # it was withdrawn (its number may be another one's by now), or all is over
        del self._asked[number]
        self._left(call)
        if error is None:
            self._say((number, result), answer_bytes(result))
        else:
            self._fail(number, failure_of(self._node, error, self._peer))

    def protected(self, request: Protect | Unprotect, moment: int) -> None:
        """The node has done that for this client: to be taken back when the stream ends."""
        self._protected.note(request, moment)

    def _fail(self, number: int, failure: Failure) -> None:
        if not self.ended:  # one of those before may have been too much: then nothing counts it out
            self._say((number, None, failure), failure_bytes(failure[2]))
