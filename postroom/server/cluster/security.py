"""Who may talk to a node: certificates of one authority, and tokens for clients.

* A *node* has a certificate of the authority for the host of its address, as a DNS name or IP
  address among the subject alternative names; it shows it when it calls another node, and when it
  is called.
* A *client* has a certificate of the authority, and a token if the node was given a file of tokens.

The connection itself is mutual TLS (gRPC's): without a certificate of the authority nothing is read
from it. What makes a certificate one of a node is that it names hosts. So a client's should name
none (a common name or an e-mail address is fine): with one that does, it could act as a node there.
``insecure`` switches all of this off, by name only.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from grpc import aio

from postroom.client.remote import tls_files
from postroom.errors import AccessDenied
from postroom.server.cluster.spells import Spells

AUTHORIZATION: Final = "authorization"
BEARER: Final = "Bearer "

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
    """

    def __init__(self, certificates: Certificates | None, tokens: Tokens | None = None) -> None:
        self._certificates = certificates
        self._tokens = tokens
        self._refusals = Spells()
        self._pem = None if certificates is None else certificates.read()

    @property
    def insecure(self) -> bool:
        """Whether anybody may do anything."""
        return self._pem is None

    def add_port(self, server: aio.Server, address: str) -> int:
        """Have ``server`` listen at ``address``; the port.

        Raises:
            RuntimeError: that cannot be.
        """
        if self._pem is None:
            return int(server.add_insecure_port(address))
        ca, certificate, key = self._pem
        credentials = grpc.ssl_server_credentials(
            [(key, certificate)], root_certificates=ca, require_client_auth=True
        )
        return int(server.add_secure_port(address, credentials))

    def open_channel(self, address: str, options: Sequence[tuple[str, Any]]) -> aio.Channel:
        """A channel to the node at ``address``."""
        if self._pem is None:
            return aio.insecure_channel(address, options=options)
        ca, certificate, key = self._pem
        credentials = grpc.ssl_channel_credentials(ca, key, certificate)
        return aio.secure_channel(address, credentials, options=options)

    async def check_node(self, context: Any, address: str) -> None:
        """Ends the call unless who calls has a certificate for the host of ``address``."""
        if self._pem is None:
            return
        host = address.rpartition(":")[0].strip("[]")
        names = _hosts(context)
        if not any(_matches(host, name) for name in names):
            is_news = self._refusals.begins((host, *names), asyncio.get_running_loop().time())
            _log.log(
                logging.WARNING if is_news else logging.DEBUG,
                "%s is refused as node at %s: its certificate names %s",
                context.peer(), address, ", ".join(names) or "no host",
            )  # fmt: skip
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"the certificate is not one of the node at {address}: it must name {host!r} as "
                "subject alternative name",
            )

    async def check_client(self, context: Any) -> None:
        """Ends the call unless who calls may use the store."""
        if self._pem is None or self._tokens is None:
            return
        shown = [value for name, value in context.invocation_metadata() if name == AUTHORIZATION]
        if not shown:
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "this node asks for a token; nothing was done",
            )
        if not str(shown[0]).startswith(BEARER) or not self._tokens.allow(shown[0][len(BEARER) :]):
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, "the token is not known here; nothing was done"
            )


def _hosts(context: Any) -> list[str]:
    """The hosts that the caller's certificate, which TLS has checked, is for.

    Not its common name: that is what clients' certificates have.
    """
    shown = context.auth_context()
    names = [*shown.get("peer_dns", []), *shown.get("peer_ip", [])]
    return [name.decode(errors="replace") for name in names]


def _matches(host: str, name: str) -> bool:
    """Whether a certificate for ``name``, perhaps ``*.domain``, is one for ``host`` (RFC 6125)."""
    try:
        return ipaddress.ip_address(host) == ipaddress.ip_address(name)
    except ValueError:
        host, name = host.lower(), name.lower()
    return host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:])
