"""Clients that may come in: certificates, tokens, and what is said of those that are of no use."""

from __future__ import annotations

from pathlib import Path

import pytest

import postroom
import postroom.aio
from postroom.client.remote.connect import parsed
from postroom.errors import AccessDenied, Invalid
from postroom.server.cluster.access import Tokens
from tests.remote.certificates import Authority
from tests.remote.servers import Server, why_not

LOCKED = b"""-----BEGIN EC PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-128-CBC,00112233445566778899AABBCCDDEEFF

AAECAwQFBgcICQoLDA0ODw==
-----END EC PRIVATE KEY-----
"""


def test_with_certificates_of_one_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    with (
        Server(authority.server()) as server,
        postroom.connect(server.address, tls=authority.client()) as db,
    ):
        db.put(b"a", b"1")
        assert db.get(b"a") == b"1"


def _foreign_client(tmp_path: Path, own: Authority) -> postroom.TLS:
    foreign = Authority(tmp_path / "foreign").client()
    return postroom.TLS(own.ca, foreign.certificate, foreign.key)


def test_a_node_of_another_authority_is_refused(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    tls = Authority(tmp_path / "foreign").client()
    with Server(authority.server()) as server:
        assert type(why_not("ca=", server.address, tls=tls)) is AccessDenied


def test_a_client_whose_certificate_the_node_does_not_know_gets_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    with Server(authority.server()) as server:
        for tls in (_foreign_client(tmp_path, authority), postroom.TLS(authority.ca)):
            assert type(why_not("certificate", server.address, tls=tls)) is AccessDenied
        assert type(why_not("tls=", server.address, insecure=True)) is AccessDenied
        assert len(server.sessions) == 0


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"nothing\.pem"):
        postroom.connect("127.0.0.1:1", tls=postroom.TLS(tmp_path / "nothing.pem"))
    with pytest.raises(Invalid, match="together"):
        postroom.connect("127.0.0.1:1", tls=postroom.TLS("ca", certificate="x"))


def test_an_ipv6_address_wants_brackets() -> None:
    with pytest.raises(ValueError, match=r"\[::1\]:7400"):
        postroom.connect("::1:7400", insecure=True)
    assert parsed("[::1]:7400") == ["[::1]:7400"]


def test_files_that_are_of_no_use_are_named_at_once(tmp_path: Path) -> None:
    ca, certificate, key = Authority(tmp_path / "ca").client()
    assert certificate is not None
    assert key is not None
    other = Authority(tmp_path / "other").client().key
    (tmp_path / "text").write_text("-----BEGIN CERTIFICATE-----\n")
    (tmp_path / "locked").write_bytes(LOCKED)
    for tls, words in (
        (postroom.TLS(tmp_path / "text"), r"text .* no certificate"),
        (postroom.TLS(ca, tmp_path / "text", key), r"text .* no certificate"),
        (postroom.TLS(ca, certificate, tmp_path / "text"), r"text .* no key"),
        (postroom.TLS(ca, certificate, tmp_path / "locked"), r"locked .* without a password"),
        (postroom.TLS(ca, certificate, other), r"a-client\.key does not belong to .*a-client\.pem"),
    ):
        with pytest.raises(Invalid, match=words):
            postroom.connect("127.0.0.1:1", tls=tls)


def test_a_node_whose_certificate_is_for_another_host_is_refused_at_once(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    with Server(authority.server()) as server:
        elsewhere = server.address.replace("127.0.0.1", "localhost")
        with pytest.raises(AccessDenied, match="names this address"):
            postroom.connect(elsewhere, tls=authority.client(), timeout=10.0)


@pytest.mark.parametrize("token", ["t\xe4ken", "two\nlines"])
def test_a_token_that_no_node_can_accept(token: str) -> None:
    with pytest.raises(Invalid, match="printable ASCII") as refused:
        postroom.connect("127.0.0.1:1", insecure=True, token=token)
    assert token not in str(refused.value)


def test_a_wrong_token_is_refused_at_once(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    (tmp_path / "tokens").write_text("sesame\n")
    security, tls = authority.server(Tokens(tmp_path / "tokens")), authority.client()
    with Server(security) as server:
        for token, words in ((None, "asks for a token"), ("open", "not known here.*token=")):
            with pytest.raises(AccessDenied, match=words):
                postroom.connect(server.address, tls=tls, token=token)
        with postroom.connect(server.address, tls=tls, token="sesame") as db:
            db.put(b"a", b"1")


def test_a_removed_token_ends_the_streams_that_it_opened(tmp_path: Path) -> None:
    """It wrote on while its stream lasted."""
    authority, path = Authority(tmp_path / "ca"), tmp_path / "tokens"
    path.write_text("sesame\nother\n")
    security, tls = authority.server(Tokens(path)), authority.client()
    with (
        Server(security) as server,
        postroom.connect(server.address, tls=tls, token="sesame") as db,
        postroom.connect(server.address, tls=tls, token="other") as other,
    ):
        db.put(b"a", b"1")
        other.put(b"b", b"1")
        path.write_text("other\n")
        server.on_loop(server.look_at_access())
        with pytest.raises(AccessDenied, match="not known here"):
            db.get(b"a")
        with pytest.raises(AccessDenied, match="not known here"):
            db.put(b"a", b"2")
        other.put(b"b", b"2")
        assert other.get(b"a") == b"1"
