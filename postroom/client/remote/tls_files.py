"""The PEM files for TLS, of clients and nodes, and their checks before they are used.

``ssl`` names neither the file that is wrong nor, in most cases, what is wrong with it.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final, NamedTuple

from postroom.errors import Invalid

_MISMATCHES: Final = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"})


class TLS(NamedTuple):
    """The PEM files by which a client recognises nodes, and is recognised by them.

    Attributes:
        ca: the path of the certificate that has signed those of the nodes.
        certificate: the path of this client's own certificate, if the nodes ask for one; else
            ``None``.
        key: the path of its key.
    """

    ca: str | Path
    certificate: str | Path | None = None
    key: str | Path | None = None


def check_tls(tls: TLS) -> None:
    """Check that the files can be used.

    Raises:
        Invalid: one cannot, or one of the pair is missing.
    """
    if (tls.certificate is None) != (tls.key is None):
        raise Invalid("TLS takes certificate and key together, or neither")
    found = fault(tls.ca, tls.certificate, tls.key)
    if found is not None:
        raise Invalid(f"{found}; nothing was sent: give the right PEM files for TLS")


def fault(
    ca: str | Path, certificate: str | Path | None = None, key: str | Path | None = None
) -> str | None:
    """Return what is wrong with the files, in words; ``None``: nothing that can be seen here.

    Args:
        ca: the authority's certificate.
        certificate, key: those of this side; both, or neither.
    """
    for path in (ca, certificate, key):
        unreadable = None if path is None else _unreadable(path)
        if unreadable:
            return unreadable
    if not _holds_certificate(ca):
        return f"{ca} is not in PEM format, or holds no certificate"
    if certificate is None or key is None:
        return None
    return _fault_of_pair(certificate, key)


def _unreadable(path: str | Path) -> str | None:
    try:
        with Path(path).open("rb"):
            return None
    except OSError as error:
        return f"cannot read {path}: {error.strerror}"


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # this check is not about the length of keys
    return context


def _holds_certificate(path: str | Path) -> bool:
    try:
        _context().load_verify_locations(path)
    except ssl.SSLError:
        return False
    return True


def _fault_of_pair(certificate: str | Path, key: str | Path) -> str | None:
    try:
        _context().load_cert_chain(certificate, key, password="")  # else it asks at the terminal
    except ssl.SSLError as error:
        if error.reason in _MISMATCHES:
            return f"the key in {key} does not belong to the certificate in {certificate}"
        if not _holds_certificate(certificate):
            return f"{certificate} is not in PEM format, or holds no certificate"
        return f"{key} is not in PEM format, or holds no key that can be read without a password"
    return None
