"""The proofs that a node asks for: certificates, tokens, and what happens without them."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from postroom.client.remote.native import offering_native
from postroom.errors import AccessDenied, Unavailable
from postroom.protocol.streams import ADMIT, DENIED, HELLO, UNAVAILABLE
from postroom.ranges.contract import Role
from postroom.server.cluster.access import Tokens, roles_of_certificates
from postroom.server.cluster.dialing import Dialer, NoAnswer
from postroom.server.cluster.nodes_service import JoinRequest, Questions, encode
from postroom.server.cluster.security import Certificates, Security
from tests.server.cluster.certificates import Authority
from tests.server.cluster.streams import Talker, cluster, until

OK = "ok"


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 60))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def node(authority: Authority) -> Certificates:
    return authority.node("127.0.0.1", "node-1.example.com")


@asynccontextmanager
async def listening(security: Security) -> AsyncIterator[str]:
    """Yield the address of a node that is asked."""
    talker = Talker(1, security)
    await talker.listen()
    try:
        yield talker.address
    finally:
        await talker.close()


async def ends(server: Security, client: Security, *, node_at: str = "") -> str:
    """Return how a question ends: well, or with which code and words.

    Args:
        server, client: what the sides show.
        node_at: who asks wants to be let in as the node there.
    """
    async with listening(server) as address:
        dialer = Dialer(client)
        try:
            if node_at:
                await dialer.ask(address, ADMIT, encode(JoinRequest(bytes(16), node_at)), 10)
            else:
                await dialer.ask(address, HELLO, b"", 10)
        except NoAnswer as error:
            if error.code == UNAVAILABLE and str(error) == "this node is in no cluster yet":
                return OK  # it was let in, and nobody is there
            return f"{error.code}: {error}"
    return OK


# --- the connection -------------------------------------------------------------------------------


def test_both_sides_prove_who_they_are(authority: Authority, node: Certificates) -> None:
    async def main() -> None:
        assert await ends(Security(node), Security(authority.client())) == OK

    run(main())


def test_certificates_that_are_worth_nothing(
    tmp_path: Path, authority: Authority, node: Certificates
) -> None:
    other = Authority(tmp_path, "other").client()
    strangers = {
        "of another authority": other,
        "the right authority, another's certificate": Certificates(
            authority.pem, other.certificate, other.key
        ),
        "expired": authority.node("127.0.0.1", expired=True),
    }

    async def main() -> None:
        for name, stranger in strangers.items():
            ended = await ends(Security(node), Security(stranger))
            assert ended.startswith(UNAVAILABLE), name

    run(main())


def test_a_node_that_cannot_prove_itself_is_not_talked_to(
    tmp_path: Path, authority: Authority
) -> None:
    client = Security(authority.client())
    unknown = "its certificate is none of this node's authority, or expired"
    false_nodes = {
        "of another authority": (Authority(tmp_path, "other").node("127.0.0.1"), unknown),
        "of another host": (
            authority.node("node-2.example.com"), "its certificate does not name this address",
        ),
        "a client's": (authority.client(), "its certificate does not name this address"),
        "expired": (
            authority.node("127.0.0.1", expired=True),
            "its certificate, or that of its authority, has expired",
        ),
    }  # fmt: skip

    async def main() -> None:
        for name, (node, words) in false_nodes.items():
            ended = await ends(Security(node), client)
            assert ended == f"{UNAVAILABLE}: {words}", name

    run(main())


def test_without_a_certificate_nothing_is_read(authority: Authority, node: Certificates) -> None:
    async def main() -> None:
        async with listening(Security(node)) as address:
            bare = Security(authority.client())
            bare.client_context = _without_certificate(authority)
            with pytest.raises(NoAnswer, match="certificate"):
                await Dialer(bare).ask(address, HELLO, b"", 10)

    run(main())


def _without_certificate(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(authority.pem)
    return offering_native(context)


def test_tls_and_none_do_not_meet(authority: Authority, node: Certificates) -> None:
    async def main() -> None:
        secure, insecure = Security(node), Security(None)
        assert insecure.insecure
        assert not secure.insecure
        ended = await ends(secure, insecure)
        assert ended == f"{DENIED}: this node asks for TLS; nothing was done"
        ended = await ends(insecure, secure)
        assert ended == f"{UNAVAILABLE}: it speaks no TLS: it seems to be started with --insecure"
        assert await ends(insecure, insecure) == OK

    run(main())


# --- nodes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "address", "may"),
    [
        (["127.0.0.1"], "127.0.0.1:7400", True),
        (["127.0.0.1"], "127.0.0.2:7400", False),
        (["Node-1.example.com"], "node-1.Example.com:7400", True),
        (["node-1.example.com"], "node-2.example.com:7400", False),
        (["*.example.com"], "node-2.example.com:7400", True),
        (["*.example.com"], "a.b.example.com:7400", False),
        (["::1"], "[0:0::1]:7400", True),
        (["::1"], "[::2]:7400", False),
    ],
)
def test_a_caller_needs_a_certificate_of_the_node_at_its_address(
    authority: Authority, node: Certificates, hosts: list[str], address: str, may: bool
) -> None:
    async def main() -> None:
        caller = Security(authority.node(*hosts))
        ended = await ends(Security(node), caller, node_at=address)
        assert ended == OK if may else ended.startswith(f"{DENIED}: the certificate is not one of")

    run(main())


def test_a_client_is_no_node_whatever_its_name(authority: Authority, node: Certificates) -> None:
    async def main() -> None:
        client = Security(authority.client("node-1.example.com"))
        for host in ("node-1.example.com", "node-1.example.com@example.com"):
            ended = await ends(Security(node), client, node_at=f"{host}:1")
            assert ended.startswith(DENIED)

    run(main())


def test_a_client_is_not_let_in_as_a_node(authority: Authority, node: Certificates) -> None:
    async def main() -> None:
        async with listening(Security(node)) as address:
            questions = Questions(Security(authority.client()))
            with pytest.raises(AccessDenied, match="subject alternative name"):
                await questions.admit([address], JoinRequest(bytes(16), "alice:1"))

    run(main())


def test_nodes_talk_to_nodes_only(
    authority: Authority, node: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        one, two = (Talker(n, Security(node)) for n in (1, 2))
        false = Talker(3, Security(node))
        for each in (one, two, false):
            await each.listen()
        false.security = Security(authority.client())  # it listens as a node, and calls as a client
        try:
            for each in (one, two, false):
                each.talk(cluster(one, two, false))
            await until(lambda: one.peers.connected(2) and two.peers.connected(1))
            one.peers.send(2, b"frame")
            await until(lambda: two.frames == [(1, b"frame")])
            await until(lambda: "its certificate names no host" in caplog.text)
            false.peers.send(1, b"never")
            assert not false.peers.connected(1)
            assert one.frames == []
            answers = await Questions(Security(node)).hello([two.address])
            assert answers[two.address].store_id == two.descriptor.store_id
        finally:
            for each in (one, two, false):
                await each.close()

    run(main())


# --- tokens ---------------------------------------------------------------------------------------


def test_a_token_is_asked_for(tmp_path: Path, node: Certificates) -> None:
    path = tmp_path / "tokens"
    path.write_text("first\n\n  second  \nadmin third\nread  fourth\n")
    security = Security(node, Tokens(path))
    with pytest.raises(AccessDenied, match="asks for a token"):
        security.role_of_client(None, "shop")
    for wrong in ("", "firs", "first ", "wrong", "admin third"):
        with pytest.raises(AccessDenied, match="not known here"):
            security.role_of_client(wrong, "shop")
    roles = [security.role_of_client(each, "") for each in ("first", "second", "third", "fourth")]
    assert roles == [Role.WRITE, Role.WRITE, Role.ADMIN, Role.READ]
    path.write_text("other\n")
    with pytest.raises(AccessDenied):
        security.role_of_client("first", "")
    assert security.role_of_client("other", "") is Role.WRITE


def test_a_principal_is_named_by_its_certificate_and_token(
    tmp_path: Path, node: Certificates
) -> None:
    path = tmp_path / "tokens"
    path.write_text("first\nread second\n")
    security = Security(node, Tokens(path))
    first, second = (security.access_of_client(each, "shop") for each in ("first", "second"))
    assert first.principal.startswith("certificate shop, token ")
    assert first.principal != second.principal
    assert "first" not in first.principal
    assert not security.has_changed()
    path.write_text("second\n")
    assert security.has_changed()
    assert not security.has_changed()
    assert second.current is not None
    assert second.current().role is Role.WRITE
    assert first.current is not None
    with pytest.raises(AccessDenied):
        first.current()
    assert Security(node).access_of_client(None, "shop").principal == "certificate shop"
    assert Security(None).access_of_client("first", "shop").principal == "", "its host is"


def test_without_tokens_certificates_have_roles(tmp_path: Path, node: Certificates) -> None:
    path = tmp_path / "roles"
    path.write_text("admin operator\nread reports\n")
    security = Security(node, roles=roles_of_certificates(path))
    assert security.role_of_client(None, "operator") is Role.ADMIN
    assert security.role_of_client("no matter", "reports") is Role.READ
    with pytest.raises(AccessDenied, match="'shop' has no role"):
        security.role_of_client(None, "shop")
    path.write_text("write *\n")
    assert security.role_of_client(None, "operator") is Role.WRITE
    path.write_text("king operator\n")
    assert security.role_of_client(None, "operator") is Role.WRITE, "a faulty file changes nothing"


def test_a_client_without_a_stated_role_is_no_administrator(node: Certificates) -> None:
    assert Security(node).role_of_client(None, "shop") is Role.WRITE
    assert Security(None).role_of_client(None, "") is Role.ADMIN, "where anything goes"


def test_a_file_of_tokens_that_changes(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("first\n")
    tokens = Tokens(path)
    replacement = tmp_path / "new"
    replacement.write_text("other\n")
    before = path.stat()
    os.utime(replacement, ns=(before.st_atime_ns, before.st_mtime_ns))
    replacement.rename(path)  # its size and age are those of the old one
    assert tokens.role_of("other")
    assert tokens.role_of("first") is None
    path.unlink()
    assert tokens.role_of("other")  # while it is being replaced
    path.write_text("")
    assert tokens.role_of("other") is None
    assert tokens.role_of("") is None
    path.write_text("back\n")
    assert tokens.role_of("back")


def test_a_file_of_tokens_that_others_may_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    path.write_text("token\n")
    path.chmod(0o600)
    Tokens(path)
    assert caplog.messages == []
    path.chmod(0o644)
    Tokens(path)
    assert [each for each in caplog.messages if "chmod 600" in each and "0644" in each]


def test_files_that_cannot_be_used(tmp_path: Path, node: Certificates) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    with pytest.raises(AccessDenied, match="contains no token"):
        Tokens(empty)
    with pytest.raises(AccessDenied, match="No such file"):
        Tokens(tmp_path / "missing")
    with pytest.raises(AccessDenied, match="No such file"):
        Security(Certificates(tmp_path / "missing", node.certificate, node.key))
    with pytest.raises(AccessDenied, match="PEM"):
        Security(Certificates(empty, node.certificate, node.key))


def test_a_key_of_another_certificate(authority: Authority, node: Certificates) -> None:
    wrong = Certificates(node.ca, node.certificate, authority.client().key)
    with pytest.raises(AccessDenied, match="does not belong to the certificate"):
        Security(wrong)


def test_a_client_is_known_by_the_name_of_its_token_and_else_of_its_certificate(
    authority: Authority, node: Certificates, tmp_path: Path
) -> None:
    path = tmp_path / "tokens"
    path.write_text("first\nnone second shop\n")
    path.chmod(0o600)
    by_token = Security(node, Tokens(path))
    assert by_token.access_of_client("first", "certified").name == "", "its certificate is no name"
    second = by_token.access_of_client("second", "certified")
    assert (second.name, second.role) == ("shop", Role.NONE)
    assert Security(node).access_of_client(None, "certified").name == "certified"
    assert Security(None).access_of_client(None, "certified").name == "", "nobody proves a name"
    path.write_text("first\nnone second other\n")
    assert by_token.has_changed()
    assert isinstance(second.why_not_now(), Unavailable), "it comes back under its new name"
