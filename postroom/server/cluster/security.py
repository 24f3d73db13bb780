"""Who may talk to a node: certificates of one authority, and tokens for clients.

* A *node* has a certificate of the authority for the host of its address, as a DNS name or IP
  address among the subject alternative names; it shows it when it calls another node, and when it
  is called.
* A *client* has a certificate of the authority, and a token if the node was given a file of tokens.

The connection itself is mutual TLS: without a certificate of the authority nothing is read from it.
What makes a certificate one of a node is that it names hosts. So a client's should name
none (a common name or an e-mail address is fine): with one that does, it could act as a node there.
``insecure`` switches all of this off, by name only.

Connections come in by two doors, native streams and gRPC (:mod:`.listener`). Each finds out what
was shown, and asks here whether that is enough: there are no two answers.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from postroom.client.remote import tls_files
from postroom.client.remote.native import offering_native
from postroom.errors import AccessDenied
from postroom.log_once import LogOnce

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM: the authority's certificate, this node's own (with its chain), and its key."""

    ca: Path
    certificate: Path
    key: Path

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Their contents.

        Raises:
            AccessDenied: one cannot be used.
        """
        fault = tls_files.fault(self.ca, self.certificate, self.key)
        if fault is not None:
            raise AccessDenied(
                f"the certificates cannot be used: {fault}; nothing was changed: give the right "
                "files"
            )
        return self.ca.read_bytes(), self.certificate.read_bytes(), self.key.read_bytes()


class Tokens:
    """The tokens that clients may show: one a line; the file is read again when it changes.

    Args:
        path: the file.

    Raises:
        AccessDenied: it cannot be read, or holds no token.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_at: tuple[int, ...] | None = None
        self._tokens: list[bytes] = []
        self._refresh()
        if not self._tokens:
            raise AccessDenied(f"{path} holds no token: write one a line")

    def allow(self, token: str) -> bool:
        """Whether ``token`` is one of them. Takes as long for a wrong one as for a right one."""
        self._refresh()
        shown = token.encode()
        # Not any(): that would stop at the right one, and so tell how far down it stands.
        return sum(hmac.compare_digest(each, shown) for each in self._tokens) > 0

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
            changed = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)
            if changed == self._read_at:
                return
            lines = self._path.read_bytes().splitlines()
        except OSError as error:
            if self._read_at is not None:
                return  # what was read last goes on counting while the file is being replaced
            raise AccessDenied(
                f"cannot read the tokens in {self._path}: {error.strerror}"
            ) from error
        self._tokens = [line.strip() for line in lines if line.strip()]
        if self._read_at is not None:
            _log.info("read %s again: %d tokens count", self._path, len(self._tokens))
        self._read_at = changed


class Security:
    """What a node asks of who calls it, and what it shows to whom it calls.

    Args:
        certificates: this node's; ``None``: insecure.
        tokens: of clients; ``None``: their certificates are enough.

    Attributes:
        pem: the authority's certificate, this node's own, and its key; ``None``: insecure.
    """

    def __init__(self, certificates: Certificates | None, tokens: Tokens | None = None) -> None:
        self._certificates = certificates
        self._tokens = tokens
        self._refusals = LogOnce()
        self.pem = None if certificates is None else certificates.read()
        self.server_context = self._context(ssl.PROTOCOL_TLS_SERVER)
        self.client_context = self._context(ssl.PROTOCOL_TLS_CLIENT)

    @property
    def insecure(self) -> bool:
        """Whether anybody may do anything."""
        return self.pem is None

    def _context(self, side: int) -> ssl.SSLContext | None:
        """For native streams; gRPC makes its own of the same files."""
        files = self._certificates
        if files is None:
            return None
        context = ssl.SSLContext(side)
        context.load_verify_locations(files.ca)
        context.load_cert_chain(files.certificate, files.key)
        context.verify_mode = ssl.CERT_REQUIRED
        return offering_native(context)

    def fault_of_node(self, names: Sequence[str], address: str, caller: str) -> str | None:
        """Why who calls is not the node at ``address``; ``None``: it has a certificate for it.

        Args:
            names: the hosts that its certificate, which TLS has checked, is for. Not its common
                name: that is what clients' certificates have.
            address: where it says that it is.
            caller: where it calls from, for the log.
        """
        if self.pem is None:
            return None
        host = address.rpartition(":")[0].strip("[]")
        if any(_matches(host, name) for name in names):
            return None
        self._refusals.log(
            _log, (host, *names), time.monotonic(),
            "%s is refused as node at %s: its certificate names %s",
            caller, address, ", ".join(names) or "no host",
        )  # fmt: skip
        return (
            f"the certificate is not one of the node at {address}: it must name {host!r} as "
            "subject alternative name"
        )

    def fault_of_client(self, token: str | None) -> str | None:
        """Why who calls may not use the store; ``None``: it may.

        Args:
            token: that it has shown; ``None``: none.
        """
        if self.pem is None or self._tokens is None:
            return None
        if token is None:
            return "this node asks for a token; nothing was done"
        return (
            None if self._tokens.allow(token) else "the token is not known here; nothing was done"
        )


def _matches(host: str, name: str) -> bool:
    """Whether a certificate for ``name``, perhaps ``*.domain``, is one for ``host`` (RFC 6125)."""
    try:
        return ipaddress.ip_address(host) == ipaddress.ip_address(name)
    except ValueError:
        host, name = host.lower(), name.lower()
    return host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:])
