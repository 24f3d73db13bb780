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

The other side is :class:`Questions`, which asks other nodes who they are, and whether they let this
one in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Final, NamedTuple

import msgspec

from postroom.errors import AccessDenied, Invalid
from postroom.limits import TOKEN_CHARACTERS_MAX
from postroom.log_once import LogOnce, shown
from postroom.protocol.streams import ADMIT, DENIED, HELLO, MALFORMED, UNAVAILABLE
from postroom.ranges.nodes import FINGERPRINT_BYTES, Address, Admitted, StoreId
from postroom.server.cluster.dialing import CallerRefused, Dialer, Introduction, NoAnswer, WrongKey
from postroom.server.cluster.formation import SelfDescription
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
        peers, said = self.prove(caller, introduction)
        return peers.enter(said, end, read_on, caller.fingerprint)

    def prove(self, caller: StreamCaller, introduction: bytes) -> tuple[Peers, Introduction]:
        """Check a node's proof that it has the state of the cluster.

        The node was called and has another key than this one's record says; the record there may
        lack this node's key, too. Before frames can go either way, each proves that it has the
        state.

        Returns:
            The peers of this node, and the introduction of the caller.

        Raises:
            CallerRefused: the introduction is malformed, or not from the node that it names.
        """
        if self.peers is None:
            raise CallerRefused("this node is in no cluster yet", UNAVAILABLE)
        said = self.peers.sender_of(introduction)
        self._check_node(caller, said.address)
        self.peers.check_key(said, caller.fingerprint)
        return self.peers, said

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


ANSWER_SECONDS: Final = 2.0


class Questions:
    """A series of questions to other nodes.

    Attributes:
        connection_errors: why nodes did not answer the last question.
        fingerprints: the keys that the others have shown; none: there is no TLS.

    Args:
        security: the proofs that this node shows.
        fault_of_key: returns why the key with a fingerprint, shown at an address, is not trusted.
    """

    def __init__(
        self, security: Security, fault_of_key: Callable[[str, bytes], str | None] | None = None
    ) -> None:
        self.connection_errors: dict[str, str] = {}
        self.fingerprints: dict[str, bytes] = {}
        self._fault_of_key = fault_of_key
        self._dialer = Dialer(security)

    async def hello(self, addresses: Iterable[str]) -> dict[str, SelfDescription]:
        """Return the descriptions of the nodes at ``addresses`` that answer."""
        asked = list(addresses)
        answers = await asyncio.gather(*(self._ask(each, HELLO, b"") for each in asked))
        heard = {}
        for address, answer in zip(asked, answers, strict=True):
            if answer is None:
                continue
            try:
                heard[address] = self_descriptions.decode(answer)
            except (msgspec.DecodeError, ValueError) as error:
                _log.warning("the answer of %s is malformed: %s", address, shown(error))
        return heard

    async def admit(self, addresses: Sequence[str], application: JoinRequest) -> Admitted | None:
        """Ask to be admitted; ``None``: no node could do it now.

        Raises:
            Invalid: refused for good.
            AccessDenied: this node's certificate is not for its address.
        """
        to_ask = list(addresses)
        asked = set()
        while to_ask:
            address = to_ask.pop(0)
            asked.add(address)
            verdict = await self._verdict(address, application)
            if verdict.refusal:
                raise Invalid(verdict.refusal)
            if verdict.admission is not None:
                return verdict.admission
            if verdict.elsewhere and verdict.elsewhere not in asked:
                to_ask.insert(0, verdict.elsewhere)
        return None

    async def _verdict(self, address: str, application: JoinRequest) -> Verdict:
        answer = await self._ask(address, ADMIT, encode(application))
        if answer is None:
            return Verdict()
        try:
            return verdicts.decode(answer)
        except (msgspec.DecodeError, ValueError) as error:
            _log.warning("the answer of %s is malformed: %s", address, shown(error))
            return Verdict()

    async def _ask(self, address: str, method: str, argument: bytes) -> bytes | None:
        try:
            answer = await self._dialer.ask(
                address, method, argument, ANSWER_SECONDS, partial(self._note_key, address)
            )
        except NoAnswer as error:
            if error.code == DENIED and not isinstance(error, WrongKey):
                raise AccessDenied(f"{address} refuses: {shown(error)}") from error
            _log.debug("%s does not answer: %s", address, shown(error))
            self.connection_errors[address] = shown(error)
            return None
        self.connection_errors.pop(address, None)
        return answer

    def _note_key(self, address: str, fingerprint: bytes) -> str | None:
        self.fingerprints[address] = fingerprint
        return None if self._fault_of_key is None else self._fault_of_key(address, fingerprint)
