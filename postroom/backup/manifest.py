"""The manifest of a backup: which store it is of, its timestamp, and what each file must be.

It is written last, at once: a folder without it has no backup. It says nothing about where files
are, so it cannot lead out of its folder: part 7 is the file ``part-00007`` here, and its trail
``trail-00007``.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec

from postroom.errors import Invalid
from postroom.kv.clock import LOGICAL_BITS
from postroom.limits import BACKUP_PARTS_MAX, KEY_BYTES_MAX
from postroom.messaging import image_entries
from postroom.ranges.requests import TimestampNumber

FORMAT: Final = 2
MANIFEST: Final = "manifest.json"

_Id = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
_Hash = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Hex = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})*$", max_length=2 * KEY_BYTES_MAX + 2)]


class BackupPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the store, and its file.

    Attributes:
        start, end: its span of keys, in hexadecimal; ``None``: no bound.
        entries: the number of entries in the file, those that are gone included.
        bytes: the size of the file.
        sha256: the hash of the file, in hexadecimal.
    """

    start: _Hex
    end: _Hex | None
    entries: _Number
    bytes: _Number
    sha256: _Hash


class BackupManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The manifest of a backup.

    Attributes:
        format: the version of this format.
        backup: the id of the backup: 32 hexadecimal digits, made up.
        store: the id of the store.
        timestamp: the timestamp of everything in it; ``time``: as people write it.
        since: the id of the backup since which it has what has changed; empty: it has all.
        since_timestamp: the timestamp of that.
        tables: the number of entries of the store in each table, changed or not.
        parts: the parts. The first one has what belongs to no key.
        trail: the files of the trail, one for each part; empty: there is none.
        trail_until: the timestamp up to which the trail is complete; 0: there is none.
        sha256: the hash of the manifest without this field.
    """

    format: int
    backup: _Id
    store: _Id
    timestamp: TimestampNumber
    time: str
    since: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")]
    since_timestamp: TimestampNumber
    tables: dict[str, _Number]
    parts: Annotated[
        tuple[BackupPart, ...], msgspec.Meta(min_length=2, max_length=BACKUP_PARTS_MAX)
    ]
    trail: Annotated[tuple[BackupPart, ...], msgspec.Meta(max_length=BACKUP_PARTS_MAX)] = ()
    trail_until: TimestampNumber = 0
    sha256: str = ""

    @property
    def entries(self) -> int:
        """Return the number of entries of the store."""
        return sum(self.tables.values())

    @property
    def bytes(self) -> int:
        """Return the size of all files."""
        return sum(file.bytes for file in (*self.parts, *self.trail))


def part_name(number: int) -> str:
    """Return the name of the file of a part."""
    return f"part-{number:05d}"


def trail_name(number: int) -> str:
    """Return the name of the file of the trail of a part."""
    return f"trail-{number:05d}"


def time_of(timestamp: int) -> str:
    """Return a timestamp as people write it, to the second."""
    seconds = (timestamp >> LOGICAL_BITS) // 1000
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def encoded(manifest: BackupManifest) -> bytes:
    """Return the bytes of a manifest, with its hash."""
    sealed = msgspec.structs.replace(manifest, sha256=_hash(manifest))
    return msgspec.json.format(msgspec.json.encode(sealed)) + b"\n"


def decoded(content: bytes, path: object) -> BackupManifest:
    """Decode a manifest.

    Args:
        content: its bytes.
        path: its path, for people.

    Raises:
        Invalid: it is damaged, or of another format.
    """
    try:
        told = msgspec.json.decode(content, type=_Format).format
        if told != FORMAT:
            raise Invalid(
                f"{path} has format {told}, and this version of Postroom knows {FORMAT}; nothing "
                "was changed: use a version that knows it"
            )
        manifest = msgspec.json.decode(content, type=BackupManifest)
        if manifest.sha256 != _hash(manifest):
            raise ValueError("its checksum is another one")
        _check(manifest)
    except (ValueError, OverflowError, msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(
            f"{path} is damaged: {error}; nothing was changed: get the backup from where it is "
            "sound"
        ) from error
    return manifest


class _Format(msgspec.Struct, frozen=True):
    format: int


def _hash(manifest: BackupManifest) -> str:
    plain = msgspec.structs.replace(manifest, sha256="")
    return hashlib.sha256(msgspec.json.encode(plain)).hexdigest()


def _check(manifest: BackupManifest) -> None:
    """Check that times and tables can be shown, and that the parts are all keys, in order."""
    for timestamp in (manifest.since_timestamp, manifest.trail_until):
        time_of(timestamp)
    if manifest.time != time_of(manifest.timestamp):
        raise ValueError("its time is not that of its timestamp")
    if not manifest.tables.keys() <= set(image_entries.TABLES):
        raise ValueError("it names tables that no store has")
    expected: str | None = ""
    for part in manifest.parts[1:]:
        if part.start != expected:
            raise ValueError("its parts leave out keys, or have them twice")
        expected = part.end
    if expected is not None:
        raise ValueError("its parts end before the last key")
    if manifest.trail or manifest.trail_until:
        _check_trail(manifest)


def _check_trail(manifest: BackupManifest) -> None:
    spans = [
        [(part.start, part.end) for part in files] for files in (manifest.parts, manifest.trail)
    ]
    if spans[0] != spans[1]:
        raise ValueError("its trail has other parts")
    if not manifest.since_timestamp < manifest.trail_until <= manifest.timestamp:
        raise ValueError("its trail is not of the time since the backup before")
