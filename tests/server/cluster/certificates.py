"""Certificates for tests: of nodes, of clients, of somebody else's authority, and expired ones."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import trustme

from postroom.server.cluster.security import Certificates


class Authority:
    """A certificate authority, whose files are in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._ca = trustme.CA(organization_name=name)
        self._folder = folder / name
        self._folder.mkdir()
        self.pem = self._folder / "ca.pem"
        self._ca.cert_pem.write_to_path(self.pem)

    def node(self, *hosts: str, expired: bool = False) -> Certificates:
        """Issue a certificate that names hosts."""
        until = datetime(2001, 1, 1, tzinfo=UTC) if expired else None
        since = datetime(2000, 1, 1, tzinfo=UTC) if expired else None
        return self._files(self._ca.issue_cert(*hosts, not_after=until, not_before=since))

    def client(self, name: str = "alice") -> Certificates:
        """Issue a certificate that names somebody, but no host."""
        return self._files(self._ca.issue_cert(f"{name}@example.com", common_name=name))

    def _files(self, issued: trustme.LeafCert) -> Certificates:
        number = len(list(self._folder.iterdir()))
        certificate, key = self._folder / f"{number}.pem", self._folder / f"{number}.key"
        certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return Certificates(self.pem, certificate, key)
