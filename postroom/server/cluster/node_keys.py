"""The key of a certificate, by which a node is known, whatever else the authority has issued.

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
from pathlib import Path
from typing import Final

from postroom.client.remote.tls_files import (
    SEQUENCE,
    after_version,
    element,
    first_of_pem,
)
from postroom.errors import Invalid

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
        Invalid: the file cannot be read, or holds no certificate.
    """
    try:
        return fingerprint_of_pem(path.read_text(encoding="latin-1"))
    except OSError as error:
        raise Invalid(f"cannot read {path}: {error.strerror}") from error
    except Invalid as error:
        raise Invalid(f"{path}: {error}") from error
