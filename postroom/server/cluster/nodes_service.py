"""What nodes offer each other: who are you, let me in, and a stream of frames.

========  =======================================================================================
question  what goes over it, as MessagePack
========  =======================================================================================
hello     nothing; answered with ``formation.SelfDescription``
admit     ``JoinRequest``; answered with ``Verdict``
prove     ``Introduction``; answered with nothing, or refused. Native streams only
frames    ``Introduction``; accepted, then frames of consensus come in, and nothing goes out
========  =======================================================================================

By whichever door (:mod:`.native_server`, :mod:`.grpc_services`) somebody comes: who is let in is
decided here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, NamedTuple

import msgspec

from postroom.limits import TOKEN_CHARACTERS_MAX
from postroom.log_once import LogOnce
from postroom.protocol.streams import DENIED, MALFORMED, UNAVAILABLE
from postroom.ranges.nodes import FINGERPRINT_BYTES, Address, Admitted, StoreId
from postroom.server.cluster.formation import SelfDescription
from postroom.server.cluster.introductions import Refused
from postroom.server.cluster.peers import Arrival, Peers
from postroom.server.cluster.security import Security

_log = logging.getLogger(__name__)


class Caller(NamedTuple):
    """Who calls.

    Attributes:
        where: its address, for the log.
        names: the hosts that its certificate is for, which TLS has checked.
        common_name: what a client's certificate is for.
        fingerprint: of its key; empty: there is no TLS.
    """

    where: str
    names: tuple[str, ...] = ()
    common_name: str = ""
    fingerprint: bytes = b""


class JoinRequest(msgspec.Struct, frozen=True, array_like=True):
    """A store wants to be a node of the cluster; or is node ``node_id``, and has news.

    Attributes:
        next_fingerprint: of the key that it will have when it starts again; empty: as before.
        token: of an administrator, who wants a new store to be a node.
    """

    store_id: StoreId
    address: Address
    node_id: int = 0
    next_fingerprint: Annotated[bytes, msgspec.Meta(max_length=FINGERPRINT_BYTES)] = b""
    token: Annotated[str, msgspec.Meta(max_length=TOKEN_CHARACTERS_MAX)] = ""


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """The answer: admitted; or who else is to be asked; or why not.

    Attributes:
        admission: what it is from now on.
        elsewhere: the address of the node that leads, if that is another one.
        refusal: why not, for good.
    """

    admission: Admitted | None = None
    elsewhere: str = ""
    refusal: str = ""


encode = msgspec.msgpack.Encoder().encode
join_requests = msgspec.msgpack.Decoder(JoinRequest)
verdicts = msgspec.msgpack.Decoder(Verdict)
self_descriptions = msgspec.msgpack.Decoder(SelfDescription)


class NodesService:
    """See the module.

    Args:
        security: who is a node.
        hello: what this node says of itself.

    Attributes:
        peers: the transport of the node, once there is one.
        admit: has the cluster admit a store, once there is a node.
    """

    def __init__(self, security: Security, hello: Callable[[], SelfDescription]) -> None:
        self.peers: Peers | None = None
        self.admit: Callable[[JoinRequest, Caller], Awaitable[Verdict]] | None = None
        self._security = security
        self._hello = hello
        self._refusals = LogOnce()

    @property
    def hears_others(self) -> bool:
        """Whether any other node has a stream to this one."""
        return self.peers is not None and self.peers.hears_others

    def say_hello(self) -> bytes:
        """Who this node is."""
        return encode(self._hello())

    async def judge(self, caller: Caller, request: bytes) -> bytes:
        """The verdict on an application.

        Raises:
            Refused: it is none, or not from who it says.
        """
        try:
            application = join_requests.decode(request)
        except (msgspec.DecodeError, ValueError) as error:
            raise Refused(f"malformed ({error})", MALFORMED) from error
        self._check_node(caller, application.address)
        if self.admit is None:
            raise Refused("this node is in no cluster yet", UNAVAILABLE)
        return encode(await self.admit(application, caller))

    def enter(
        self,
        caller: Caller,
        introduction: bytes,
        end: Callable[[], None],
        read_on: Callable[[], None],
    ) -> Arrival:
        """A node wants to send frames.

        Args:
            caller: who.
            introduction: what it says of itself.
            end, read_on: as for :meth:`Peers.enter`.

        Raises:
            Refused: it is none, or not from who it says.
        """
        if self.peers is None:
            raise Refused("this node is in no cluster yet", UNAVAILABLE)
        said = self.peers.sender_of(introduction)
        self._check_node(caller, said.address)
        self.peers.check_key(said, caller.fingerprint)
        return self.peers.enter(said, end, read_on, caller.fingerprint)

    def prove(self, caller: Caller, introduction: bytes) -> None:
        """A node that was called shows another key than this one's record has, and so does this one
        there, perhaps: before frames can go either way, each tells that it has the state.

        Raises:
            Refused: it is none, or not from who it says.
        """
        if self.peers is None:
            raise Refused("this node is in no cluster yet", UNAVAILABLE)
        said = self.peers.sender_of(introduction)
        self._check_node(caller, said.address)
        self.peers.check_key(said, caller.fingerprint)

    def _check_node(self, caller: Caller, address: str) -> None:
        fault = self._security.fault_of_node(caller.names, address, caller.where)
        if fault is not None:
            raise Refused(fault, DENIED)
        if not (caller.fingerprint or self._security.insecure):
            raise Refused("the key of the certificate cannot be read", DENIED)

    def closed(self, sender: str, caller: Caller, reason: Exception) -> None:
        """A stream is closed because of ``reason``: logged once, for who is refused comes again."""
        host = caller.where.rpartition(":")[0]
        if isinstance(reason, Refused) and reason.code in {UNAVAILABLE, DENIED}:
            _log.debug("the stream of %s is turned away: %s", sender, reason)
            return
        self._refusals.log(
            _log, (host, str(reason)), time.monotonic(),
            "the stream of %s is closed: %s", sender, reason,
        )  # fmt: skip
