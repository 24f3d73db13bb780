"""What a node says while it looks for its place: why others do not answer, once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from postroom.server.cluster.applying import Questions
from postroom.server.cluster.place import Said
from postroom.server.cluster.security import Certificates, Security
from tests.cluster.places import Loopback
from tests.server.cluster.certificates import Authority
from tests.server.cluster.streams import Talker


def test_a_line_is_said_once_and_again_when_it_changes() -> None:
    now = 0.0
    said = Said(lambda: now)
    assert said.is_news("a")
    assert not said.is_news("a")
    now = 1.0
    assert not said.is_news("a")
    assert said.is_news("b")


def test_what_flutters_is_said_less_and_less_often() -> None:
    now, lines = 0.0, 0
    said = Said(lambda: now)
    for tenth in range(6000):
        now = tenth / 10
        lines += said.is_news("ab"[tenth % 2])
    assert lines < 30


async def _trouble(asks: Security, address: str) -> str:
    questions = Questions(asks)
    try:
        assert await questions.hello([address]) == {}
    finally:
        await questions.close()
    return questions.troubles[address]


def test_why_a_node_does_not_answer(tmp_path: Path) -> None:
    own, other = Authority(tmp_path), Authority(tmp_path, "other").node("127.0.0.1")
    node = own.node("127.0.0.1")
    secure, insecure = Security(node), Security(None)

    async def main() -> None:
        assert await _trouble(insecure, Loopback().address(1)) == "nobody listens there"
        for listens, asks, words in (
            (secure, insecure, "it hangs up"),
            (insecure, secure, "it speaks no TLS"),
            (Security(other), secure, "none of this node's authority"),
            (secure, Security(Certificates(own.pem, other.certificate, other.key)), "it hangs up"),
            (Security(own.node("elsewhere.example.com")), secure, "does not name this address"),
        ):
            talker = Talker(1, listens)
            await talker.listen()
            try:
                assert words in await _trouble(asks, talker.address)
            finally:
                await talker.close()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_who_answers_again_is_in_no_trouble() -> None:
    async def main() -> None:
        talker, questions = Talker(1), Questions(Security(None))
        await talker.listen()
        questions.troubles[talker.address] = "nobody listens there"
        try:
            assert talker.address in await questions.hello([talker.address])
            assert questions.troubles == {}
        finally:
            await questions.close()
            await talker.close()

    asyncio.run(asyncio.wait_for(main(), 60))
