"""Bytes, times and payloads as texts for people. Nothing here is HTML: templates escape it."""

from __future__ import annotations

import json
from typing import Any

import postroom
from postroom.web.limits import NAME_BYTES_MAX, SHOWN_BYTES_MAX


def readable(raw: bytes) -> str | None:
    """Return bytes as text, if they are printable; ``None``: they are not."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def name_of(raw: str | bytes) -> dict[str, str]:
    """Return a key or an id: its ``text`` for people, shortened, and its ``hex`` for links."""
    stored = raw.encode() if isinstance(raw, str) else raw
    text = readable(stored)
    shown = f"0x{stored.hex()}" if text is None else text
    if len(shown) > NAME_BYTES_MAX:
        shown = f"{shown[:NAME_BYTES_MAX]}… ({len(stored)} bytes)"
    return {"text": shown, "hex": stored.hex()}


def when(timestamp: int | None) -> str | None:
    """Return a timestamp as text in UTC; ``None``: there is none."""
    if not timestamp:
        return None
    return postroom.Timestamp(timestamp).datetime.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def payload_of(codec: Any, raw: bytes | None, key: bytes) -> dict[str, Any] | None:
    """Return a value or payload as the codec unpacks it: its form, its text, its size.

    Args:
        codec: the codec of the store.
        raw: the stored bytes; ``None``: there is no value.
        key: the key that errors of the codec name.
    """
    if raw is None:
        return None
    form, text = _unpacked(codec, raw, key)
    return {
        "form": form,
        "text": text[:SHOWN_BYTES_MAX],
        "bytes": len(raw),
        "cut": len(text) > SHOWN_BYTES_MAX,
    }


def _unpacked(codec: Any, raw: bytes, key: bytes) -> tuple[str, str]:
    try:
        value = codec.decode(raw, key)
    except postroom.WrongType as error:
        return "damaged", f"{error}\n{_dump(raw)}"
    if not isinstance(value, bytes):
        return "value", json.dumps(value, indent=1, ensure_ascii=False, default=repr)
    text = _text(value)
    return ("bytes", _dump(value)) if text is None else ("text", text)


def _text(raw: bytes) -> str | None:
    """Return bytes as text of several lines, if they are one."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    return text if all(each.isprintable() or each in "\n\t" for each in text) else None


def _dump(raw: bytes) -> str:
    """Return bytes in hexadecimal, sixteen a line."""
    shown = raw[: SHOWN_BYTES_MAX // 4]
    return "\n".join(shown[at : at + 16].hex(" ") for at in range(0, len(shown), 16))
