"""The PEM files for TLS, of clients and nodes, and their checks before they are used.

``ssl`` names neither the file that is wrong nor, in most cases, what is wrong with it. Nor does it
tell when a certificate expires. The module steps over DER by hand, as far as this needs no library:
TLS has checked the form, or will. Anything that is not plain DER (an indefinite length, or one
beyond the end) is refused, never guessed.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
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
        return f"{ca} is not in PEM format, or contains no certificate"
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
            return f"{certificate} is not in PEM format, or contains no certificate"
        return f"{key} is not in PEM format, or holds no key that can be read without a password"
    return None


SEQUENCE: Final = 0x30
VERSION: Final = 0xA0
UTC_TIME: Final = 0x17
LONG_LENGTH: Final = 0x80
LENGTH_BYTES: Final = 4
BEFORE_THE_DATES: Final = 3
"""The number of elements before the dates: serialNumber, signature, issuer."""

BEGIN: Final = "-----BEGIN CERTIFICATE-----"
END: Final = "-----END CERTIFICATE-----"


def element(data: bytes, start: int, tag: int | None = None) -> tuple[int, int]:
    """Return where the content of a DER element begins, and where it ends.

    Raises:
        Invalid: there is no element, or its tag is not ``tag``.
    """
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


def after_version(certificate: bytes) -> int:
    """Return where the serial number of a certificate begins."""
    content, _ = element(certificate, 0, SEQUENCE)
    start, _ = element(certificate, content, SEQUENCE)
    if certificate[start : start + 1] == bytes([VERSION]):
        _, start = element(certificate, start)
    return start


def first_of_pem(text: str) -> bytes:
    """Return the first certificate of a PEM file, which is the holder's, in DER.

    Raises:
        Invalid: there is none.
    """
    _, begin, rest = text.partition(BEGIN)
    body, end, _ = rest.partition(END)
    if not begin or not end:
        raise Invalid("there is no certificate in PEM")
    try:
        return ssl.PEM_cert_to_DER_cert(f"{begin}{body}{end}")
    except ValueError as error:
        raise Invalid(f"the certificate is no PEM ({error})") from error


def expires_at(certificate: bytes) -> datetime:
    """Return when a certificate in DER expires.

    Raises:
        Invalid: it does not say.
    """
    start = after_version(certificate)
    for _ in range(BEFORE_THE_DATES):
        _, start = element(certificate, start)
    start, _ = element(certificate, start, SEQUENCE)
    _, start = element(certificate, start)
    content, end = element(certificate, start)
    said = certificate[content:end].decode("latin-1")
    if certificate[start] == UTC_TIME:
        said = ("20" if said < "50" else "19") + said
    try:
        return datetime.strptime(said, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
    except ValueError as error:
        raise Invalid(f"the certificate expires at no time: {said[:30]!r}") from error


def has_expired(path: str | Path, wall_seconds: float) -> datetime | None:
    """Return when the certificate in a PEM file expired; ``None``: it did not, or does not say."""
    try:
        expiry = expires_at(first_of_pem(Path(path).read_text(encoding="latin-1")))
    except (Invalid, OSError):
        return None
    return expiry if expiry.timestamp() <= wall_seconds else None
