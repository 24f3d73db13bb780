"""The proofs that a node asks for: certificates of one authority, and tokens for clients.

* A *node* has a certificate of the authority for the host of its address, as a DNS name or IP
  address among the subject alternative names. It shows it when it calls another node, and when it
  is called.
* The key of a node tells which one it is (:func:`fingerprint_of`). The record of the nodes binds a
  key to each id. No other program can act as that node, or be called as it (:mod:`.peers`),
  whatever hosts its certificate names. If no key is bound yet, as in an older folder, only the
  names count.
* A *client* has a certificate of the authority, and a token if the node was given a file of tokens.
  Its role says what it may do (:mod:`.access`): that of its token, or of its certificate.

The connection itself is mutual TLS: without a certificate of the authority nothing is read from it.
A certificate is that of a node if it names hosts. A client's should therefore name
none (a common name or an e-mail address is fine). With one that does, it could ask to be let in as
a node there, which also takes an administrator's word (:meth:`Security.vouches`).
``insecure`` switches all of this off, by name only.

:mod:`.native_server` reads the proofs, and asks here whether they are enough.

Certificates are read when the node starts, and the dates read then count.

*Keys.* A node is known by the key of its certificate, whatever else the authority has issued.
A certificate names its holder to an authority, and a new one is made every year. It finally proves
only that its holder has a private key. A node is therefore bound to its *public key*, by the
SHA-256 of its SubjectPublicKeyInfo (RFC 5280, 4.1), as HTTP's pins were (RFC 7469, 2.4). A
certificate that is renewed for the same key changes nothing.

::

    Certificate ─ SEQUENCE
        TBSCertificate ─ SEQUENCE
            [0] version, serialNumber, signature, issuer, validity, subject
            subjectPublicKeyInfo ─ SEQUENCE ◀── this, with its own tag and length

TLS has checked the certificate before it comes here: its signature and its form are right. Six
elements have to be stepped over, which takes no library. ``cryptography`` would be a dependency of
every node for this alone. Anything but plain DER (a length that is not definite, or beyond the end)
is refused, never guessed at.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final

from postroom.client.remote import tls_files
from postroom.client.remote.native import offering_native
from postroom.client.remote.tls_files import (
    SEQUENCE,
    after_version,
    element,
    expires_at,
    first_of_pem,
)
from postroom.counted import counted
from postroom.errors import AccessDenied, Invalid
from postroom.log_once import LogOnce
from postroom.ranges.contract import Role
from postroom.server.cluster.access import Access, Roles, Tokens, WatchedFile

WARNING_TIME: Final = timedelta(days=14)
AGAIN_BEFORE: Final = timedelta(days=1)
AGAIN_AFTER: Final = timedelta(hours=1)

_log = logging.getLogger(__name__)


class Expiry:
    """The dates of one node's certificates; see the module.

    Args:
        dates: when each certificate expires, by its name.
    """

    def __init__(self, dates: Mapping[str, datetime]) -> None:
        self._dates = dates
        self._said_at: dict[str, datetime] = {}

    def dates(self) -> dict[str, float]:
        """Return when each certificate expires, in seconds since 1970, by its name."""
        return {name: date.timestamp() for name, date in self._dates.items()}

    def look(self, wall_seconds: float) -> str:
        """Return the present fault of the certificates, or an empty text. Log it now and then."""
        now = datetime.fromtimestamp(wall_seconds, UTC)
        return "; ".join(filter(None, [self._look_at(name, now) for name in self._dates]))

    def _look_at(self, name: str, now: datetime) -> str:
        expiry = self._dates[name]
        left = expiry - now
        if left > WARNING_TIME:
            return ""
        is_over = left <= timedelta()
        until = f"on {expiry:%Y-%m-%d at %H:%M} UTC"
        said = f"{name} expired {until}" if is_over else f"{name} expires {until}"
        before = self._said_at.get(name)
        again = AGAIN_AFTER if is_over else AGAIN_BEFORE
        if before is None or not timedelta() <= now - before < again or before < expiry <= now:
            self._said_at[name] = now
            if is_over:
                _log.error(
                    "%s: nodes and clients refuse new connections; renew it, and start the node "
                    "again", said,
                )  # fmt: skip
            else:
                days = counted(left.days, "day")
                _log.warning("%s, in %s: renew it, and start the node again", said, days)
        return said


@dataclass(frozen=True, slots=True)
class Certificates:
    """The files in PEM: the authority's certificate, this node's own with its chain, its key."""

    ca: Path
    certificate: Path
    key: Path

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Return their contents.

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
    """The proofs that a node asks of its callers, and shows to the nodes that it calls.

    Args:
        certificates: this node's; ``None``: insecure.
        tokens: the tokens of clients; ``None``: their certificates are enough.
        roles: the roles of clients' certificates, if there are no tokens; ``None``: all may write.

    Attributes:
        pem: the authority's certificate, this node's own, and its key; ``None``: insecure.
        fingerprint: the fingerprint of this node's key; empty: insecure.
        expiry: warns in time that certificates expire.
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
        self._readings = 0
        self.pem = None if certificates is None else certificates.read()
        self.fingerprint = b""
        self.expiry = Expiry({} if self.pem is None else _dates(self.pem[0], self.pem[1]))
        self._own_file: WatchedFile[bytes] | None = None
        if certificates is not None and self.pem is not None:
            self.fingerprint = _fingerprint(self.pem[1])
            self._own_file = WatchedFile(certificates.certificate, _fingerprint)
        self.server_context = self._context(ssl.PROTOCOL_TLS_SERVER)
        self.client_context = self._context(ssl.PROTOCOL_TLS_CLIENT)

    @property
    def insecure(self) -> bool:
        """Return whether every caller may do anything."""
        return self.pem is None

    @property
    def next_fingerprint(self) -> bytes:
        """Return the fingerprint of the key in the certificate's file now, for the next start."""
        return b"" if self._own_file is None else self._own_file.current()

    @property
    def admin_token(self) -> str:
        """Return an administrator's token that this node shows when it joins; empty: none."""
        return "" if self._tokens is None else self._tokens.first_of(Role.ADMIN)

    def vouches(self, token: str, name: str) -> bool:
        """Return whether an administrator wants the caller to be a node.

        The arguments are those of :meth:`role_of_client`.
        """
        try:
            return self.role_of_client(token or None, name) is Role.ADMIN
        except AccessDenied:
            return False

    def _context(self, side: int) -> ssl.SSLContext | None:
        """Return the TLS context of native streams; ``None``: insecure."""
        files = self._certificates
        if files is None:
            return None
        context = ssl.SSLContext(side)
        context.load_verify_locations(files.ca)
        context.load_cert_chain(files.certificate, files.key)
        context.verify_mode = ssl.CERT_REQUIRED
        return offering_native(context)

    def fault_of_node(self, names: Sequence[str], address: str, caller: str) -> str | None:
        """Return why the caller is not the node at ``address``, or ``None`` if it is.

        Args:
            names: the hosts that its certificate, which TLS has checked, is for. Its common name is
                not among them: clients' certificates have one.
            address: the address that it claims.
            caller: the address that it calls from, for the log.
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
        """Return the role of a client.

        Args:
            token: the token that it has shown; ``None``: none.
            name: the common name of its certificate, which TLS has checked.

        Raises:
            AccessDenied: it has no role.
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

    def access_of_client(self, token: str | None, name: str) -> Access:
        """Return the terms on which a client is let in.

        The arguments are those of :meth:`role_of_client`.

        Raises:
            AccessDenied: it is not let in.
        """
        role = self.role_of_client(token, name)
        shown = [f"certificate {name}"] if name and self.pem is not None else []
        if token is not None and self._tokens is not None:
            shown.append(f"token {sha256(token.encode()).hexdigest()[:16]}")
        current = partial(self.access_of_client, token, name)
        return Access(role, ", ".join(shown), current, self._name_for_grants(token, name))

    def _name_for_grants(self, token: str | None, name: str) -> str:
        """Return the name of a client to which rights are granted; empty: it has none."""
        if self._tokens is None:
            return "" if self.insecure else name
        line = None if token is None else self._tokens.line_of(token)
        return "" if line is None else line.name

    def has_changed(self) -> bool:
        """Return whether new content of a file of permissions was accepted since the last call."""
        readings = 0 if self._tokens is None else self._tokens.readings()
        if self._roles is not None:
            self._roles.current()
            readings += self._roles.readings
        before, self._readings = self._readings, readings
        return readings != before

    def _role_of_token(self, token: str | None) -> Role:
        assert self._tokens is not None
        if token is None:
            raise AccessDenied("this node asks for a token; nothing was done")
        role = self._tokens.role_of(token)
        if role is None:
            raise AccessDenied("the token is not known here; nothing was done")
        return role


NODE_CERTIFICATE: Final = "this node's certificate"
AUTHORITY_CERTIFICATE: Final = "its authority's"


def _dates(ca: bytes, certificate: bytes) -> dict[str, datetime]:
    dates = {}
    for name, pem in ((NODE_CERTIFICATE, certificate), (AUTHORITY_CERTIFICATE, ca)):
        with suppress(Invalid):  # TLS has accepted it: it need not be read here
            dates[name] = expires_at(first_of_pem(pem.decode("latin-1")))
    return dates


def _fingerprint(pem: bytes) -> bytes:
    return fingerprint_of_pem(pem.decode("latin-1"))


def _matches(host: str, name: str) -> bool:
    """Return whether a certificate for ``name``, or ``*.domain``, is for ``host`` (RFC 6125)."""
    try:
        return ipaddress.ip_address(host) == ipaddress.ip_address(name)
    except ValueError:
        host, name = host.lower(), name.lower()
    return host == name or (name.startswith("*.") and host.partition(".")[2] == name[2:])


# --- the key of a certificate ---------------------------------------------------------------------


BEFORE_THE_KEY: Final = 5
"""The number of elements before the key: serialNumber, signature, issuer, validity, subject."""


def fingerprint_of(certificate: bytes) -> bytes:
    """Return the SHA-256 of the public key of a certificate.

    Args:
        certificate: in DER.

    Raises:
        Invalid: it is no certificate.
    """
    start = after_version(certificate)
    for _ in range(BEFORE_THE_KEY):
        _, start = element(certificate, start)
    _, end = element(certificate, start, SEQUENCE)
    return hashlib.sha256(certificate[start:end]).digest()


def key_of(certificate: bytes | None) -> bytes:
    """Return the fingerprint of a certificate; empty: there is none, or it cannot be read."""
    try:
        return fingerprint_of(certificate) if certificate else b""
    except Invalid:
        return b""


def fingerprint_of_pem(text: str) -> bytes:
    """Return the fingerprint of the first certificate in a PEM file, which is the holder's.

    Raises:
        Invalid: there is no certificate in it.
    """
    return fingerprint_of(first_of_pem(text))


def fingerprint_of_file(path: Path) -> bytes:
    """Return the fingerprint of the first certificate in the PEM file at ``path``.

    Raises:
        Invalid: the file cannot be read, or contains no certificate.
    """
    try:
        return fingerprint_of_pem(path.read_text(encoding="latin-1"))
    except OSError as error:
        raise Invalid(f"cannot read {path}: {error.strerror}") from error
    except Invalid as error:
        raise Invalid(f"{path}: {error}") from error
