"""The questions to other nodes: who they are, and whether they let this one in."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import msgspec

from postroom.errors import AccessDenied, Invalid
from postroom.log_once import shown
from postroom.protocol.streams import ADMIT, DENIED, HELLO
from postroom.ranges.nodes import Admitted
from postroom.server.cluster.dialing import Dialer, NoAnswer, WrongKey
from postroom.server.cluster.formation import SelfDescription
from postroom.server.cluster.nodes_service import (
    JoinRequest,
    Verdict,
    encode,
    self_descriptions,
    verdicts,
)
from postroom.server.cluster.security import Security

ANSWER_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


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
