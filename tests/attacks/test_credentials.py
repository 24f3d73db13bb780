"""Tokens that are removed and come back, with three nodes in processes of their own.

Elsewhere: certificates that expire (``tests/server/cluster/test_expiry.py``), keys and certificates
of nodes that are renewed (:mod:`.test_node_keys`), both doors (``tests/remote/test_tls.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import postroom
from postroom.errors import AccessDenied, CommitUnknown
from tests.cluster.harness import ClusterProcesses, cluster, eventually
from tests.server.cluster.certificates import Authority

NODES = 3


@contextmanager
def three_nodes(folder: Path, authority: Authority, tokens: Path) -> Iterator[ClusterProcesses]:
    """Run three nodes, each with a key of its own, that ask for tokens."""
    with cluster(folder, 0) as three:
        addresses = [three.place.address(number) for number in range(1, NODES + 1)]
        for number, address in enumerate(addresses, 1):
            files = authority.node(address.rpartition(":")[0])
            three._options = (
                "--tls-ca", str(files.ca), "--tls-certificate", str(files.certificate),
                "--tls-key", str(files.key), "--token-file", str(tokens),
            )  # fmt: skip
            three._add(number, ",".join(addresses))
        for node in three.nodes:
            node.start()
        for node in three.nodes:
            node.wait_ready()
        yield three


def write(tokens: Path, *known: str) -> None:
    """Replace the file of tokens in one step."""
    written = tokens.with_suffix(".new")
    written.write_text("".join(f"{token}\n" for token in known))
    written.chmod(0o600)
    written.replace(tokens)


def is_refused(db: postroom.Database) -> bool:
    """Return whether a write is refused for its token."""
    try:
        db.put(b"first", b"too late")
    except AccessDenied:
        return True
    except CommitUnknown:  # its stream ended while it was under way
        return False
    return False


def test_a_removed_token_is_refused_while_its_stream_lasts_and_comes_back(tmp_path: Path) -> None:
    authority, tokens = Authority(tmp_path), tmp_path / "tokens"
    write(tokens, "admin operator", "first", "second")
    files = authority.client()
    tls = postroom.TLS(files.ca, files.certificate, files.key)
    with three_nodes(tmp_path, authority, tokens) as three:

        def connect(token: str) -> postroom.Database:
            return postroom.connect(three.addresses.split(","), tls=tls, token=token, timeout=60)

        with connect("first") as db, connect("second") as other:
            db.put(b"first", b"1")
            other.put(b"second", b"1")
            write(tokens, "admin operator", "second")
            eventually(lambda: is_refused(db))
            with pytest.raises(AccessDenied, match="not known here"):
                db.get(b"first")
            with pytest.raises(AccessDenied, match="not known here"):
                connect("first")
            other.put(b"second", b"2")
            write(tokens, "admin operator", "first", "second")
            with connect("first") as again:
                again.put(b"first", b"3")
            other.put(b"second", b"3")
            assert other.get(b"first") == b"3"
