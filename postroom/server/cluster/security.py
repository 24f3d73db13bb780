"""Who may talk to a node: certificates of one authority, and tokens for clients.

* A *node* has a certificate of the authority for the host of its address, as a DNS name or IP
  address among the subject alternative names; it shows it when it calls another node, and when it
  is called.
* Which node it is says its key (:mod:`.node_keys`): the record of the nodes binds a key to each id,
  and nobody else acts as that node, or is called as it (:mod:`.peers`), whatever hosts his
  certificate names. Where no key is bound yet, as in a folder of before, the names count alone.
* A *client* has a certificate of the authority, and a token if the node was given a file of tokens.
  Its role says what it may do (:mod:`.access`): that of its token, or of its certificate.

The connection itself is mutual TLS: without a certificate of the authority nothing is read from it.
A certificate is that of a node if it names hosts. So a client's should name
none (a common name or an e-mail address is fine): with one that does, it could ask to be let in as
a node there. That takes an administrator's word besides (:meth:`Security.vouches`).
``insecure`` switches all of this off, by name only.

Connections come in by two doors, native streams and gRPC (:mod:`.listener`). Each finds out what
was shown, and asks here whether that is enough: there are no two answers.
"""

from __future__ import annotations

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
from postroom.server.cluster.access import Role, Roles
from postroom.server.cluster.access_files import Tokens, WatchedFile
from postroom.server.cluster.node_keys import fingerprint_of_pem

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


class Security:
    """What a node asks of who calls it, and what it shows to whom it calls.

    Args:
        certificates: this node's; ``None``: insecure.
        tokens: of clients; ``None``: their certificates are enough.
        roles: of clients' certificates, where there are no tokens; ``None``: all may write.

    Attributes:
        pem: the authority's certificate, this node's own, and its key; ``None``: insecure.
        fingerprint: of this node's key; empty: insecure.
    """

    def __init__(
        self,
        certificates: Certificates | None,
        tokens: Tokens | None = None,
        roles: WatchedFile[Roles] | None = None,
    ) -> None:
        self._roles = roles
        self._certificates = certificates
        self._tokens = tokens
        self._refusals = LogOnce()
        self.pem = None if certificates is None else certificates.read()
        self.fingerprint = b""
        self._own_file: WatchedFile[bytes] | None = None
        if certificates is not None and self.pem is not None:
            self.fingerprint = _fingerprint(self.pem[1])
            self._own_file = WatchedFile(certificates.certificate, _fingerprint)
        self.server_context = self._context(ssl.PROTOCOL_TLS_SERVER)
        self.client_context = self._context(ssl.PROTOCOL_TLS_CLIENT)

    @property
    def insecure(self) -> bool:
        """Whether anybody may do anything."""
        return self.pem is None

    @property
    def next_fingerprint(self) -> bytes:
        """Of the key in the certificate's file as it is now: with it the node would start again."""
        return b"" if self._own_file is None else self._own_file.current()

    @property
    def admin_token(self) -> str:
        """An administrator's token that this node knows, to show when it joins; empty: none."""
        return "" if self._tokens is None else self._tokens.first_of(Role.ADMIN)

    def vouches(self, token: str, name: str) -> bool:
        """Whether an administrator wants who calls to be a node: as for :meth:`role_of_client`."""
        try:
            return self.role_of_client(token or None, name) is Role.ADMIN
        except AccessDenied:
            return False

    def grpc_context(self) -> ssl.SSLContext | None:
        """For a look at the certificate of a server that speaks gRPC; ``None``: insecure."""
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        if context is not None:
            context.set_alpn_protocols(["h2"])
        return context

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

    def role_of_client(self, token: str | None, name: str) -> Role:
        """What who calls may do with the store.

        Args:
            token: that it has shown; ``None``: none.
            name: the common name of its certificate, which TLS has checked.

        Raises:
            AccessDenied: nothing at all.
        """
        if self.pem is None:
            return Role.ADMIN
        if self._tokens is not None:
            return self._role_of_token(token)
        if self._roles is None:
            return Role.WRITE
        role = self._roles.current().of(name)
        if role is None:
            raise AccessDenied(
                f"the certificate of {name[:60]!r} has no role at this node; nothing was done: add "
                "it to the file of roles"
            )
        return role

    def _role_of_token(self, token: str | None) -> Role:
        assert self._tokens is not None
        if token is None:
            raise AccessDenied("this node asks for a token; nothing was done")
        role = self._tokens.role_of(token)
        if role is None:
            raise AccessDenied("the token is not known here; nothing was done")
        return role


def _fingerprint(pem: bytes) -> bytes:
    return fingerprint_of_pem(pem.decode("latin-1"))


def _matches(host: str, name: str) -> bool:
    """Whether a certificate for ``name``, perhaps ``*.domain``, is one for ``host`` (RFC 6125)."""
    try:
        return ipaddress.ip_address(host) == ipaddress.ip_address(name)
    except ValueError:
        host, name = host.lower(), name.lower()
    return host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:])
