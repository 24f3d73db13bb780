"""The commands about settings: ``postroom settings ...``.

A setting of the store lies in its first range: a change takes effect on all nodes at once. The
others are given to a node when it starts; they are told with the way to change them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

import typer

import postroom
from postroom.cli.options import AsJson, StoreOptions, on_a_store
from postroom.cli.output import Listing, as_split_bytes, print_json, print_line
from postroom.errors import Invalid
from postroom.limits import MEMORY_BYTES, MEMORY_BYTES_MIN, SPLIT_BYTES_MIN

DEFAULT: Final = "default"
HEADERS: Final = ("name", "value", "from")


class SettingValue(NamedTuple):
    """The value of a setting, and where it comes from."""

    value: int | str
    source: str


class Setting(NamedTuple):
    """A setting.

    Attributes:
        kind: the type of its values, for people.
        range: the values that are possible.
        default: the value without any other word.
        takes_effect: when a change takes effect, and how to make it if ``write`` does not.
        meaning: the meaning.
        read: reads its value.
        write: changes it, and returns the new value; ``None``: it needs a restart.
    """

    kind: str
    range: str
    default: int | str
    takes_effect: str
    meaning: str
    read: Callable[[postroom.Database], SettingValue]
    write: Callable[[postroom.Database, str], SettingValue] | None = None


def _split_bytes(size: int) -> SettingValue:
    return SettingValue(size, "the store" if size else DEFAULT)


def _read_memory(db: postroom.Database) -> SettingValue:
    size = db.status().storage.memory_bytes
    return SettingValue(size, DEFAULT if size == MEMORY_BYTES else "--memory")


SETTINGS: Final = {
    "engine": Setting(
        "name", "leveldb or rocksdb", "the one that is installed",
        "when a folder is made; to change it, replace the nodes one by one (serve --engine)",
        "the engine that writes the folder of the node that answers",
        lambda db: SettingValue(db.status().storage.engine, "the folder"),
    ),
    "memory": Setting(
        "bytes", f"{MEMORY_BYTES_MIN} or more", MEMORY_BYTES,
        "when a node starts; restart it with serve --memory SIZE",
        "the budget of memory of the node that answers", _read_memory,
    ),
    "split-bytes": Setting(
        "bytes", f"0, or {SPLIT_BYTES_MIN} or more", 0, "at once, on all nodes",
        "a range that holds more is split; 0: never",
        lambda db: _split_bytes(db.configure_ranges()),
        lambda db, text: _split_bytes(
            db.configure_ranges(split_bytes=as_split_bytes(text, "VALUE"))
        ),
    ),
}  # fmt: skip

app = typer.Typer(help="Settings of a store and its nodes.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


@app.command("list")
@on_a_store
def list_settings(store: StoreOptions, as_json: AsJson = False) -> None:
    """Print all settings: name, value, and where the value comes from."""
    with store.open_existing() as db, Listing(*HEADERS) as listing:
        for name, setting in SETTINGS.items():
            found = setting.read(db)
            if as_json:
                print_json({"name": name, **found._asdict()})
            else:
                listing.add(name, str(found.value), found.source)


@app.command("get")
@on_a_store
def get_setting(store: StoreOptions, name: Name, as_json: AsJson = False) -> None:
    """Print the value of the setting NAME."""
    setting = _known(name)
    with store.open_existing() as db:
        _print(name, setting.read(db), as_json)


@app.command("set")
@on_a_store
def set_setting(
    store: StoreOptions,
    name: Name,
    value: Annotated[str, typer.Argument(metavar="VALUE", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Change the setting NAME to VALUE, and print it.

    'postroom settings explain' shows which values are possible, and which settings need a restart.
    """
    setting = _known(name)
    if setting.write is None:
        raise Invalid(
            f"{name} is no setting of running nodes; nothing was changed: it takes effect "
            f"{setting.takes_effect}"
        )
    with store.open_existing() as db:
        _print(name, setting.write(db, value), as_json)


@app.command("explain")
def explain_setting(name: Name, as_json: AsJson = False) -> None:
    """Print meaning, type, range and default of the setting NAME, and when it takes effect."""
    setting = _known(name)
    facts: dict[str, object] = {
        "name": name,
        "meaning": setting.meaning,
        "type": setting.kind,
        "range": setting.range,
        "default": setting.default,
        "takes effect": setting.takes_effect,
    }
    if as_json:
        print_json({each.replace(" ", "_"): fact for each, fact in facts.items()})
        return
    for each, fact in facts.items():
        print_line(each, str(fact))


def _known(name: str) -> Setting:
    setting = SETTINGS.get(name)
    if setting is None:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(SETTINGS)}", param_hint="NAME")
    return setting


def _print(name: str, found: SettingValue, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, **found._asdict()})
    else:
        print_line(str(found.value))
