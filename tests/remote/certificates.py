"""Certificates for tests, of an authority of their own, as files."""

from __future__ import annotations

from pathlib import Path

import trustme

import postroom
from postroom.server.cluster.access import Tokens
from postroom.server.cluster.security import Certificates, Security


class Authority:
    """An authority that issues certificates into a folder."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))

    def issue(self, name: str) -> tuple[Path, Path]:
        """Issue a certificate with its key for a host, or a client."""
        issued = self._authority.issue_cert(name)
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(str(key))
        return certificate, key

    def client(self, name: str = "a-client") -> postroom.TLS:
        certificate, key = self.issue(name)
        return postroom.TLS(self.ca, certificate, key)

    def server(self, tokens: Tokens | None = None) -> Security:
        """Issue a certificate for 127.0.0.1; its server wants to see certificates of clients."""
        certificate, key = self.issue("127.0.0.1")
        return Security(Certificates(self.ca, certificate, key), tokens)
