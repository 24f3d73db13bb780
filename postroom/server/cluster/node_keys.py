"""The key of a certificate: what a node is known by, whatever else the authority has issued.

A certificate says who somebody is to an authority, and a new one is made every year; what it proves
in the end is that who shows it has a private key. So a node is bound to its *public key*, by the
SHA-256 of its SubjectPublicKeyInfo (RFC 5280, 4.1), as HTTP's pins were (RFC 7469, 2.4). A
certificate that is renewed for the same key changes nothing.

::

    Certificate ─ SEQUENCE
        TBSCertificate ─ SEQUENCE
            [0] version, serialNumber, signature, issuer, validity, subject
            subjectPublicKeyInfo ─ SEQUENCE ◀── this, with its own tag and length

TLS has checked the certificate before it comes here: its signature and its form are right. Six
elements have to be stepped over, which takes no library: ``cryptography`` would be a dependency of
every node, also of those without gRPC, for this alone. What is not plain DER (a length that is not
definite, or beyond the end) is refused, never guessed at.
"""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from typing import Final

from postroom.errors import Invalid

SEQUENCE: Final = 0x30
VERSION: Final = 0xA0
BEFORE_THE_KEY: Final = 5
"""serialNumber, signature, issuer, validity, subject."""
LONG_LENGTH: Final = 0x80
LENGTH_BYTES: Final = 4

BEGIN: Final = "-----BEGIN CERTIFICATE-----"
END: Final = "-----END CERTIFICATE-----"


def fingerprint_of(certificate: bytes) -> bytes:
    """SHA-256 of the public key of a certificate.

    Args:
        certificate: in DER.

    Raises:
        Invalid: it is none.
    """
    content, _ = _element(certificate, 0, SEQUENCE)
    start, _ = _element(certificate, content, SEQUENCE)
    if certificate[start : start + 1] == bytes([VERSION]):
        _, start = _element(certificate, start)
    for _ in range(BEFORE_THE_KEY):
        _, start = _element(certificate, start)
    _, end = _element(certificate, start, SEQUENCE)
    return hashlib.sha256(certificate[start:end]).digest()


def key_of(certificate: bytes | None) -> bytes:
    """As :func:`fingerprint_of`; empty: there is none, or none that can be read."""
    try:
        return fingerprint_of(certificate) if certificate else b""
    except Invalid:
        return b""


def fingerprint_of_pem(text: str) -> bytes:
    """As :func:`fingerprint_of`, of the first certificate in a PEM file, which is the holder's.

    Raises:
        Invalid: there is none.
    """
    _, begin, rest = text.partition(BEGIN)
    body, end, _ = rest.partition(END)
    if not begin or not end:
        raise Invalid("there is no certificate in PEM")
    try:
        return fingerprint_of(ssl.PEM_cert_to_DER_cert(f"{begin}{body}{end}"))
    except ValueError as error:
        raise Invalid(f"the certificate is none ({error})") from error


def fingerprint_of_file(path: Path) -> bytes:
    """As :func:`fingerprint_of_pem`.

    Raises:
        Invalid: it cannot be read, or is none.
    """
    try:
        return fingerprint_of_pem(path.read_text(encoding="latin-1"))
    except OSError as error:
        raise Invalid(f"cannot read {path}: {error.strerror}") from error
    except Invalid as error:
        raise Invalid(f"{path}: {error}") from error


def _element(data: bytes, start: int, tag: int | None = None) -> tuple[int, int]:
    """Where the content of a DER element begins, and where it ends."""
    if start + 2 > len(data):
        raise Invalid("the certificate is cut")
    found, length = data[start], data[start + 1]
    content = start + 2
    if length >= LONG_LENGTH:
        count = length - LONG_LENGTH
        if not 0 < count <= LENGTH_BYTES:
            raise Invalid("the certificate is no DER")
        length = int.from_bytes(data[content : content + count], "big")
        content += count
    if tag is not None and found != tag:
        raise Invalid("the certificate has another form than X.509 has")
    if content + length > len(data):
        raise Invalid("the certificate is cut")
    return content, content + length
