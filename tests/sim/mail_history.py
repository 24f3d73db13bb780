"""The answers to clients about inboxes, held against what the store says at the end.

A part of :mod:`.history`. Every message that was ever delivered is either in its inbox at the end
or in the record of the reap that took it, with the moments of both. The content of an inbox at any
timestamp is known therefore, until garbage collection takes the records away. From that follow

* for each ``peek``: which messages it has to tell, all of them, in which order, with what in them.
  An answer that is empty, or ends early, is judged as one with something in it;
* for each ``reap_queue``: its messages were there, as they were sent, and no reap of them had been
  heard of before it was asked. Others may have held the messages that it was *not* handed: that is
  judged where the claims are, by :mod:`.grants`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from postroom.messaging.requests import Delivered, Inbox, ListInboxes, Peek, Peeked, ReapQueue
from tests.sim.checkers import Content, require

ANSWERS_MAX = 2000
"""The answers that are remembered: one run need not look at everything."""

_delivered = msgspec.msgpack.Decoder(Delivered)


class _Message(NamedTuple):
    """One that was delivered: with its id, and when it was reaped (0: never)."""

    id: bytes
    content: Delivered
    reaped_at: int


@dataclass
class MailHistory:
    """The history of the inboxes."""

    peeks: list[tuple[Peek, Peeked]] = field(default_factory=list)
    reaps: list[tuple[ReapQueue, int, Any]] = field(default_factory=list)
    """The reaps, each with a timestamp at which somebody had been told what there is before."""
    _asked: dict[int, tuple[ReapQueue, int]] = field(default_factory=dict)

    # --- observations

    def sent(self, request: ReapQueue, newest: int) -> None:
        """Note that a client asks for messages when what there is at ``newest`` was told."""
        self._asked[id(request)] = request, newest

    def answered(self, request: ReapQueue | Peek | ListInboxes, result: Any) -> None:
        """Note that a client gets an answer."""
        match request:
            case ReapQueue():
                _, newest = self._asked.pop(id(request))
                _require_order(result.messages)
                if len(self.reaps) < ANSWERS_MAX:
                    self.reaps.append((request, newest, result))
            case Peek():
                _require_order(result.messages)
                if len(self.peeks) < ANSWERS_MAX:
                    self.peeks.append((request, result))
            case ListInboxes():
                _check_inboxes(request, result)

    # --- the verdict

    def check(self, content: Content) -> None:
        """Raise ``Broken`` if the store tells another story."""
        everything = {
            key: _delivered_to(content, key)
            for key in {request.key for request, *_ in (*self.peeks, *self.reaps)}
        }
        for request, told in self.peeks:
            if told.timestamp >= content.collected:
                _check_peek(everything[request.key], request, told)
        for reap, newest, result in self.reaps:
            _check_reap(content, everything[reap.key], reap, newest, result)


def _require_order(messages: list[tuple[bytes, bytes]]) -> None:
    ids = [id_ for id_, _ in messages]
    require(ids == sorted(set(ids)), "messages are not handed out in order")


def _delivered_to(content: Content, key: bytes) -> list[_Message]:
    waiting = [_Message(id_, each, 0) for id_, each in content.inboxes.get(key, {}).items()]
    reaped = [
        _Message(id_, each, int.from_bytes(when, "big"))
        for when, id_, each in content.reaped.get(key, ())
    ]
    return sorted(waiting + reaped, key=lambda message: message.id)


def _check_peek(everything: list[_Message], request: Peek, told: Peeked) -> None:
    at = told.timestamp
    require(request.timestamp in (0, at), f"{request} was answered as of {at}")
    first = b"" if request.after is None else request.after + b"\x00"
    then = [
        message
        for message in everything
        if message.id >= first
        and message.content.delivered_at <= at
        and (not message.reaped_at or message.reaped_at > at)
    ]
    found = [(id_, _delivered.decode(stored)) for id_, stored in told.messages]
    wanted = [(message.id, message.content) for message in then[: len(found)]]
    what = f"{request} at {at} found {_named(found)}; there was {_named(then)}"
    require(found == wanted, what)
    require(told.more == (len(found) < len(then)), f"{what}; more: {told.more}")
    require(len(found) <= request.messages_max, what)
    if told.more and len(found) < request.messages_max:
        next_bytes = len(msgspec.msgpack.encode(then[len(found)].content))
        size = sum(len(stored) for _, stored in told.messages) + next_bytes
        require(size > request.bytes_max, f"{what}, and there was room")


def _named(messages: list[Any]) -> list[str]:
    return [message[0].hex() for message in messages]


def _check_reap(
    content: Content, everything: list[_Message], request: ReapQueue, newest: int, result: Any
) -> None:
    by_id: dict[tuple[bytes, int], _Message] = {
        (message.id, message.content.delivered_at): message for message in everything
    }
    for id_, stored in result.messages:
        told = _delivered.decode(stored)
        message = by_id.get((id_, told.delivered_at))
        if message is None:
            collected = told.delivered_at <= content.collected
            require(collected, f"{request} was handed {id_.hex()}, which was not there: {told}")
            continue
        require(told == message.content, f"{request}: {id_.hex()} is {message.content}, not {told}")
        require(
            not message.reaped_at or message.reaped_at > newest,
            f"{request} was handed {id_.hex()}, reaped at {message.reaped_at}, after {newest}",
        )


def _check_inboxes(request: ListInboxes, told: list[Inbox]) -> None:
    require(len(told) <= request.inboxes_max, f"{request} was told more")
    ages = [each.key if request.by_key else each.oldest for each in told]
    require(ages == sorted(ages), f"{request}: in another order: {told}")
    for each in told:
        inside = each.key >= request.start and (request.end is None or each.key < request.end)
        require(inside and each.messages > 0, f"{request} was told of {each}")
    require(len({each.key for each in told}) == len(told), f"{request} was told one twice: {told}")
