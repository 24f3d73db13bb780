"""The services of nodes to each other: descriptions, admission, and a stream of frames.

========  =======================================================================================
question  contents, as MessagePack
========  =======================================================================================
hello     nothing; answered with ``formation.SelfDescription``
admit     ``JoinRequest``; answered with ``Verdict``
prove     ``Introduction``; answered with nothing, or refused
frames    ``Introduction``; accepted, then frames of consensus come in, and nothing goes out
========  =======================================================================================

:mod:`.native_server` moves the bytes; the decision whether a caller is let in is made here.
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
from postroom.server.cluster.introductions import CallerRefused
from postroom.server.cluster.peers import PeerArrival, Peers
from postroom.server.cluster.security import Security

_log = logging.getLogger(__name__)


class StreamCaller(NamedTuple):
    """The caller of a node.

    Attributes:
        where: its address, for the log.
        names: the hosts that its certificate is for, which TLS has checked.
        common_name: the common name of a client's certificate.
        fingerprint: the fingerprint of its key; empty: there is no TLS.
    """

    where: str
    names: tuple[str, ...] = ()
    common_name: str = ""
    fingerprint: bytes = b""


class JoinRequest(msgspec.Struct, frozen=True, array_like=True):
    """The request of a store to be a node of the cluster, or the news of node ``node_id``.

    Attributes:
        next_fingerprint: of the key that it will have when it starts again; empty: no new one.
        token: the token of an administrator who wants a new store to be a node.
    """

    store_id: StoreId
    address: Address
    node_id: int = 0
    next_fingerprint: Annotated[bytes, msgspec.Meta(max_length=FINGERPRINT_BYTES)] = b""
    token: Annotated[str, msgspec.Meta(max_length=TOKEN_CHARACTERS_MAX)] = ""


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a ``JoinRequest``: admitted, or the node to ask instead, or why not.

    Attributes:
        admission: the node's id and cluster from now on.
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
    """The service of one node for others; see the module.

    Args:
        security: decides which callers are nodes.
        hello: returns this node's description of itself.

    Attributes:
        peers: the transport of the node, once there is one.
        admit: has the cluster admit a store, once there is a node.
    """

    def __init__(self, security: Security, hello: Callable[[], SelfDescription]) -> None:
        self.peers: Peers | None = None
        self.admit: Callable[[JoinRequest, StreamCaller], Awaitable[Verdict]] | None = None
        self._security = security
        self._hello = hello
        self._refusals = LogOnce()

    @property
    def hears_others(self) -> bool:
        """Return whether any other node has a stream to this one."""
        return self.peers is not None and self.peers.hears_others

    def say_hello(self) -> bytes:
        """Return this node's description of itself."""
        return encode(self._hello())

    async def judge(self, caller: StreamCaller, request: bytes) -> bytes:
        """Return the verdict on an application.

        Raises:
            CallerRefused: it is malformed, or not from the node that it names.
        """
        try:
            application = join_requests.decode(request)
        except (msgspec.DecodeError, ValueError) as error:
            raise CallerRefused(f"malformed ({error})", MALFORMED) from error
        self._check_node(caller, application.address)
        if self.admit is None:
            raise CallerRefused("this node is in no cluster yet", UNAVAILABLE)
        return encode(await self.admit(application, caller))

    def enter(
        self,
        caller: StreamCaller,
        introduction: bytes,
        end: Callable[[], None],
        read_on: Callable[[], None],
    ) -> PeerArrival:
        """Let a node in that wants to send frames.

        Args:
            caller: the node, as TLS has proved it.
            introduction: its description of itself.
            end, read_on: called as :meth:`Peers.enter` says.

        Raises:
            CallerRefused: the introduction is malformed, or not from the node that it names.
        """
        if self.peers is None:
            raise CallerRefused("this node is in no cluster yet", UNAVAILABLE)
        said = self.peers.sender_of(introduction)
        self._check_node(caller, said.address)
        self.peers.check_key(said, caller.fingerprint)
        return self.peers.enter(said, end, read_on, caller.fingerprint)

    def prove(self, caller: StreamCaller, introduction: bytes) -> None:
        """Check a node's proof that it has the state of the cluster.

        The node was called and has another key than this one's record says; the record there may
        lack this node's key, too. Before frames can go either way, each proves that it has the
        state.

        Raises:
            CallerRefused: the introduction is malformed, or not from the node that it names.
        """
        if self.peers is None:
            raise CallerRefused("this node is in no cluster yet", UNAVAILABLE)
        said = self.peers.sender_of(introduction)
        self._check_node(caller, said.address)
        self.peers.check_key(said, caller.fingerprint)

    def _check_node(self, caller: StreamCaller, address: str) -> None:
        fault = self._security.fault_of_node(caller.names, address, caller.where)
        if fault is not None:
            raise CallerRefused(fault, DENIED)
        if not (caller.fingerprint or self._security.insecure):
            raise CallerRefused("the key of the certificate cannot be read", DENIED)

    def closed(self, sender: str, caller: StreamCaller, reason: Exception) -> None:
        """Log once that a stream is closed because of ``reason``: a refused caller comes again."""
        host = caller.where.rpartition(":")[0]
        if isinstance(reason, CallerRefused) and reason.code in {UNAVAILABLE, DENIED}:
            _log.debug("the stream of %s is turned away: %s", sender, reason)
            return
        self._refusals.log(
            _log, (host, str(reason)), time.monotonic(),
            "the stream of %s is closed: %s", sender, reason,
        )  # fmt: skip
