"""Write the page of all requests of the native protocol, from their classes.

``python docs/tools/requests_page.py`` prints it; the site has it as ``reference/requests.md``.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from postroom.messaging.bulk_requests import TABLES
from postroom.protocol.requests import REQUESTS, name_of
from postroom.ranges.contract import Request, Scope
from postroom.ranges.requests import UNBOUNDED

HEAD: Final = """# Requests

The requests of the [native protocol](../protocol.md#requests), made from their classes. A request
is an array: its name, then its fields in their order. A record is an array of its fields. What has
a default (`=`) may be left out at the end; *any* is a number above all others. Headers are a map of
text to text, bytes or numbers, or nil.
"""
_PLAIN: Final = {
    bytes: "bytes",
    str: "text",
    bool: "boolean",
    int: "number",
    float: "seconds",
    None: "nil",
    types.NoneType: "nil",
}
_SEVERAL: Final = {tuple, dict, typing.Union, types.UnionType}
_CODE: Final = re.compile(r"``([^`]*)``")
_LINK: Final = re.compile(r" ?\(?:\w+:`~?\.?([^`]+)`\)?")


def page() -> str:
    """Return the page."""
    kinds = {"Alone": REQUESTS.asked, "In a transaction": REQUESTS.writes}
    parts = [HEAD]
    for title, classes in kinds.items():
        parts.append(f"## {title}\n")
        parts += [_request(kind) for kind in sorted(classes, key=name_of)]
    parts.append("## Records\n")
    records = _records((*REQUESTS.asked, *REQUESTS.writes))
    parts += [_record(each) for each in sorted(records, key=lambda each: each.__name__)]
    parts.append(_tables())
    return "\n".join(parts)


def _request(kind: type[Request]) -> str:
    assert kind.role is not None
    facts = [f"role `{kind.role.value}`", f"revision {kind.since}", _concern(kind)]
    if kind.wait_seconds_max:
        facts.append("may wait")
    answer = f"Answer: {_told(kind.answer)}." if kind.answer is not None else "Answer: nil."
    lines = [
        f"### `{name_of(kind)}`\n",
        f"*{' · '.join(facts)}*\n",
        *_described(kind),
        f"{answer}\n",
    ]
    return "\n".join(lines)


def _concern(kind: type[Request]) -> str:
    try:
        concern = kind.concerns(None)  # type: ignore[arg-type]  # a scope needs no request
    except AttributeError:
        return "keys"
    return concern.value if isinstance(concern, Scope) else "keys"


def _tables() -> str:
    """Return the section about the tables of ``scan_records``."""
    widths = {0: "", 1: " (1 byte)", 8: " (8 bytes)"}
    rows = [
        f"| {name} | {', '.join(f'{each}{widths[kind.width]}' for each, kind in columns.items())} |"
        for name, columns in TABLES.items()
    ]
    return "\n".join(["## Tables of records\n", "| table | columns |\n| --- | --- |", *rows, ""])


def _record(kind: type[msgspec.Struct]) -> str:
    return "\n".join([f"### {kind.__name__}\n", *_described(kind)])


def _described(kind: type[msgspec.Struct]) -> Iterator[str]:
    """Yield the documentation of a class and its fields."""
    text, _, attributes = (kind.__doc__ or "").partition("Attributes:\n")
    yield f"{_markdown(text)}\n"
    told = {
        name: _markdown(found[2])
        for found in re.finditer(r"^ {8}(\w[\w, ]*): ((?:.|\n {12})*)", attributes, re.MULTILINE)
        for name in found[1].split(", ")
    }
    fields = msgspec.structs.fields(kind)
    if not fields:
        return
    yield "| field | type | |\n| --- | --- | --- |"
    for field in fields:
        default = "" if field.required else f" = {_default(field)}"
        yield f"| `{field.name}` | {_told(field.type)}{default} | {told.get(field.name, '')} |"
    yield ""


def _default(field: Any) -> str:
    """Return a default as the page has it."""
    match field.default:
        case None:
            return "nil"
        case bool():
            return str(field.default).lower()
        case int() | float():
            return "any" if field.default == UNBOUNDED else str(field.default)
        case str() if field.default:
            return f"`{field.default}`"
    return "empty"


def _markdown(text: str) -> str:
    lines = " ".join(text.split())
    return _LINK.sub("", _CODE.sub(r"`\1`", lines)).replace("|", "\\|")


def _told(kind: Any) -> str:
    """Return a type as the page has it."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _told(arguments[0])
    told = [_told(each) for each in arguments if each is not Ellipsis]
    if origin in {list, frozenset} or (origin is tuple and ... in arguments):
        return f"array of {told[0]}"
    return (
        _combination(origin, told) if told and origin in _SEVERAL else _told_class(origin or kind)
    )


def _combination(origin: Any, told: list[str]) -> str:
    if origin is tuple:
        return f"\\[{', '.join(told)}\\]"
    return f"map of {told[0]} to {told[1]}" if origin is dict else " or ".join(told)


def _told_class(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, Request):
        return f"`{name_of(kind)}`"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    return "write" if isinstance(kind, typing.TypeVar) else "any value"


def _records(kinds: Iterable[Any]) -> set[type[msgspec.Struct]]:
    """Return the records in the fields and the answers of some requests."""
    found: set[type[msgspec.Struct]] = set()
    left = list(kinds)
    while left:
        kind = left.pop()
        left += [each for each in typing.get_args(kind) if each is not Ellipsis]
        struct = typing.get_origin(kind) or kind
        if not (isinstance(struct, type) and issubclass(struct, msgspec.Struct)) or struct in found:
            continue
        if issubclass(struct, Request):
            left.append(getattr(struct, "answer", None))
        found.add(struct)
        left += [field.type for field in msgspec.structs.fields(struct)]
    return {each for each in found if not issubclass(each, Request)}


if __name__ == "__main__":
    print(page())  # noqa: T201 (the purpose of the program)
