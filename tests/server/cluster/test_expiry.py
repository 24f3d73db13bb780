"""A node says in time that its certificate expires, and a client why nobody answers it."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

import postroom
from postroom.client.remote.tls_files import expires_at, first_of_pem, has_expired
from postroom.errors import AccessDenied, Invalid
from postroom.server.cluster.security import Certificates, Expiry, Security
from tests.remote.servers import Server
from tests.server.cluster.certificates import Authority

DAY = timedelta(days=1)
UNTIL = datetime(2030, 6, 15, 12, tzinfo=UTC)


@pytest.mark.parametrize("year", [1999, 2001, 2049, 2050, 2051, 9999])
def test_the_date_of_a_certificate_is_read(year: int) -> None:
    until = datetime(year, 2, 28, 23, 59, 58, tzinfo=UTC)
    issued = trustme.CA().issue_cert("host", not_before=until - DAY, not_after=until)
    pem = issued.cert_chain_pems[0].bytes().decode()
    assert expires_at(first_of_pem(pem)) == until


def test_bytes_that_are_no_certificate_have_no_date() -> None:
    der = first_of_pem(trustme.CA().cert_pem.bytes().decode())
    for broken in (b"", der[:50], der[:100], b"\x30\x80" + der[2:], bytes(200)):
        with pytest.raises(Invalid):
            expires_at(broken)
    assert has_expired("no such file", UNTIL.timestamp()) is None


def test_the_log_says_two_weeks_before_and_daily_that_a_certificate_expires(
    caplog: pytest.LogCaptureFixture,
) -> None:
    expiry = Expiry({"this node's certificate": UNTIL})

    def said(now: datetime) -> list[tuple[int, str]]:
        caplog.clear()
        told = expiry.look(now.timestamp())
        assert bool(told) == (now >= UNTIL - 14 * DAY)
        return [(each.levelno, each.getMessage()) for each in caplog.records]

    assert said(UNTIL - 15 * DAY) == []
    ((level, text),) = said(UNTIL - 14 * DAY)
    assert level == logging.WARNING
    assert text.startswith("this node's certificate expires on 2030-06-15 at 12:00 UTC, in 14 days")
    assert said(UNTIL - 14 * DAY + timedelta(hours=23)) == []
    assert len(said(UNTIL - 13 * DAY)) == 1
    assert len(said(UNTIL - timedelta(seconds=1))) == 1
    ((level, text),) = said(UNTIL)
    assert level == logging.ERROR
    assert text.startswith("this node's certificate expired on 2030-06-15 at 12:00 UTC: nodes and")
    assert said(UNTIL + timedelta(minutes=59)) == []
    assert len(said(UNTIL + timedelta(minutes=60))) == 1
    assert len(said(UNTIL - DAY)) == 1, "the clock was set back"


def test_a_node_looks_at_its_own_certificate_and_its_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    expired = Security(authority.node("127.0.0.1", expired=True))
    assert expired.expiry.look(UNTIL.timestamp()) == (
        "this node's certificate expired on 2001-01-01 at 00:00 UTC"
    )
    far = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
    assert "its authority's expired" in Security(authority.node("127.0.0.1")).expiry.look(far)
    assert Security(None).expiry.look(far) == ""


@pytest.mark.parametrize("whose", ["node", "client"])
def test_a_client_says_whose_certificate_has_expired(tmp_path: Path, whose: str) -> None:
    authority = Authority(tmp_path)
    node = authority.node("127.0.0.1", expired=whose == "node")
    client = authority.node("alice", expired=True) if whose == "client" else authority.client()
    words = {
        "node": r"certificate (of .*, or of its authority, )?has expired",
        "client": rf"this client's certificate, {client.certificate}, expired on 2001-01-01",
    }
    with (
        Server(Security(node)) as server,
        pytest.raises(AccessDenied, match=words[whose]),
    ):
        postroom.connect(server.address, tls=_tls(client), timeout=20)


def _tls(files: Certificates) -> postroom.TLS:
    return postroom.TLS(files.ca, files.certificate, files.key)
