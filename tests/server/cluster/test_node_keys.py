"""Fingerprints of public keys, against a library that has read certificates for long."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from random import Random  # noqa: TID251 (seeded)
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from postroom.errors import Invalid
from postroom.server.cluster.security import (
    fingerprint_of,
    fingerprint_of_file,
    fingerprint_of_pem,
    key_of,
)

KEYS: dict[str, Any] = {
    "p256": ec.generate_private_key(ec.SECP256R1()),
    "p521": ec.generate_private_key(ec.SECP521R1()),
    "ed25519": ed25519.Ed25519PrivateKey.generate(),
    "rsa": rsa.generate_private_key(65537, 2048),
}


def certificate(key: Any, name: str = "node", serial: int = 7) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    names = [x509.DNSName(f"host-{number}.example.com") for number in range(40)]
    return (
        x509.CertificateBuilder(subject, subject, key.public_key(), serial)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2040, 1, 1, tzinfo=UTC))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    )


def expected(key: Any) -> bytes:
    spki = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).digest()


@pytest.mark.parametrize("kind", KEYS)
def test_the_fingerprint_is_that_of_the_key_whatever_else_the_certificate_says(kind: str) -> None:
    key = KEYS[kind]
    for name, serial in (("node", 7), ("n" * 60, 2**150)):
        issued = certificate(key, name, serial)
        assert fingerprint_of(issued.public_bytes(Encoding.DER)) == expected(key)
        assert fingerprint_of_pem(issued.public_bytes(Encoding.PEM).decode()) == expected(key)


def test_the_first_certificate_of_a_chain_counts(tmp_path: Path) -> None:
    chain = tmp_path / "chain.pem"
    chain.write_bytes(
        b"text before\n"
        + certificate(KEYS["p256"]).public_bytes(Encoding.PEM)
        + certificate(KEYS["rsa"]).public_bytes(Encoding.PEM)
    )
    assert fingerprint_of_file(chain) == expected(KEYS["p256"])


def test_a_cut_certificate_is_refused_and_a_spoiled_one_does_no_harm() -> None:
    whole, random = certificate(KEYS["p256"]).public_bytes(Encoding.DER), Random(1)
    for length in range(len(whole)):
        with pytest.raises(Invalid):
            fingerprint_of(whole[:length])
        assert key_of(whole[:length]) == b""
    for _ in range(5000):
        spoiled = bytearray(whole)
        for _ in range(random.randint(1, 4)):
            spoiled[random.randrange(len(spoiled))] = random.randrange(256)
        assert len(key_of(bytes(spoiled))) in {0, 32}


@pytest.mark.parametrize("length", [b"\x80", b"\x85\x00\x00\x00\x01\x00", b"\xff"])
def test_lengths_that_der_does_not_have(length: bytes) -> None:
    with pytest.raises(Invalid, match="no DER"):
        fingerprint_of(b"\x30" + length + bytes(300))


def test_files_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with pytest.raises(Invalid, match="cannot read"):
        fingerprint_of_file(file)
    file.write_text("-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n")
    with pytest.raises(Invalid, match="file"):
        fingerprint_of_file(file)
    file.write_text("nothing")
    with pytest.raises(Invalid, match="no certificate in PEM"):
        fingerprint_of_file(file)
