"""The commands about settings: ``postroom settings ...``.

A setting of the store lies in its first range: a change takes effect on all nodes within seconds.
The others are given to a node when it starts; they are told with the way to change them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, NamedTuple

import typer

import postroom
from postroom.cli.options import AsJson, StoreOptions, on_a_store
from postroom.cli.output import Listing, as_bytes, print_json, print_line
from postroom.errors import Invalid
from postroom.limits import MEMORY_BYTES, MEMORY_BYTES_MIN
from postroom.ranges import settings
from postroom.ranges.settings import OFF, Number, told

DEFAULT: Final = "default"
HEADERS: Final = ("name", "value", "from")
LIVE: Final = "within seconds, on all nodes"


class ShownSetting(NamedTuple):
    """The value of a setting, and where it comes from."""

    value: Number | str
    source: str


class StartSetting(NamedTuple):
    """A setting of a node's start.

    Attributes:
        unit: the type of its values, for people.
        range: the values that are possible.
        default: the value without any other word.
        takes_effect: when a change takes effect, and how to make it.
        meaning: the meaning.
        read: reads its value.
    """

    unit: str
    range: str
    default: int | str
    takes_effect: str
    meaning: str
    read: Callable[[postroom.Database], ShownSetting]


def _read_memory(db: postroom.Database) -> ShownSetting:
    size = db.status().storage.memory_bytes
    return ShownSetting(size, DEFAULT if size == MEMORY_BYTES else "--memory")


START_SETTINGS: Final = {
    "engine": StartSetting(
        "name", "leveldb or rocksdb", "the one that is installed",
        "when a folder is made; to change it, replace the nodes one by one (serve --engine)",
        "the engine that writes the folder of the node that answers",
        lambda db: ShownSetting(db.status().storage.engine, "the folder"),
    ),
    "memory": StartSetting(
        "bytes", f"{MEMORY_BYTES_MIN} or more", MEMORY_BYTES,
        "when a node starts; restart it with serve --memory SIZE",
        "the budget of memory of the node that answers", _read_memory,
    ),
}  # fmt: skip
NAMES: Final = sorted((*START_SETTINGS, *settings.SETTINGS))

app = typer.Typer(help="Settings of a store and its nodes.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


@app.command("list")
@on_a_store
def list_settings(store: StoreOptions, as_json: AsJson = False) -> None:
    """Print all settings: name, value, and where the value comes from."""
    with store.open_existing() as db, Listing(*HEADERS) as listing:
        live = _live(db)
        for name in NAMES:
            found = live[name] if name in live else START_SETTINGS[name].read(db)
            if as_json:
                print_json({"name": name, **found._asdict()})
            else:
                listing.add(name, str(found.value), found.source)


@app.command("get")
@on_a_store
def get_setting(store: StoreOptions, name: Name, as_json: AsJson = False) -> None:
    """Print the value of the setting NAME."""
    _check_known(name)
    with store.open_existing() as db:
        start = START_SETTINGS.get(name)
        _print(name, _live(db)[name] if start is None else start.read(db), as_json)


@app.command("set")
@on_a_store
def set_setting(
    store: StoreOptions,
    name: Name,
    value: Annotated[str, typer.Argument(metavar="VALUE", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Change the setting NAME to VALUE, and print it. All nodes take it within seconds.

    'postroom settings explain' shows which values are possible, and which settings need a restart.
    """
    _check_live(name)
    _change(store, name, _parsed(name, value), as_json)


@app.command("reset")
@on_a_store
def reset_setting(store: StoreOptions, name: Name, as_json: AsJson = False) -> None:
    """Let the setting NAME be that with which each node was started, and print it.

    Settings of splits become those with which a new cluster begins.
    """
    _check_live(name)
    _change(store, name, None, as_json)


@app.command("explain")
def explain_setting(name: Name, as_json: AsJson = False) -> None:
    """Print meaning, type, range and default of the setting NAME, and when it takes effect."""
    _check_known(name)
    found = START_SETTINGS.get(name) or settings.SETTINGS[name]
    facts: dict[str, object] = {
        "name": name,
        "meaning": found.meaning,
        "type": found.unit,
        "range": found.range,
        "default": told(found.default) if isinstance(found, settings.Setting) else found.default,
        "takes effect": LIVE if isinstance(found, settings.Setting) else found.takes_effect,
    }
    if as_json:
        print_json({each.replace(" ", "_"): fact for each, fact in facts.items()})
        return
    for each, fact in facts.items():
        print_line(each, str(fact))


def _live(db: postroom.Database) -> dict[str, ShownSetting]:
    """Return the settings that change while the store runs, by name."""
    return {each.name: _shown(each) for each in db.settings()}


def _shown(found: settings.SettingValue) -> ShownSetting:
    if found.is_stored:
        return ShownSetting(told(found.value), "the store")
    is_default = found.value == settings.SETTINGS[found.name].default
    return ShownSetting(told(found.value), DEFAULT if is_default else "the node")


def _change(store: StoreOptions, name: str, value: Number | None, as_json: bool) -> None:
    with store.open_existing() as db:
        _print(name, _shown(db.change_setting(name, value)), as_json)


def _parsed(name: str, text: str) -> Number:
    """Return a value that the setting may have."""
    setting = settings.SETTINGS[name]
    value: Number
    if setting.unit == "bytes":
        value = as_bytes(text, 0, "VALUE")
    elif text == told(OFF):
        value = OFF
    else:
        value = _as_number(text)
    if not setting.takes(value):
        raise typer.BadParameter(
            f"{text!r} is not in the range: {setting.range}", param_hint="VALUE"
        )
    return value


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no number", param_hint="VALUE") from None


def _check_known(name: str) -> None:
    if name not in NAMES:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(NAMES)}", param_hint="NAME")


def _check_live(name: str) -> None:
    _check_known(name)
    start = START_SETTINGS.get(name)
    if start is not None:
        raise Invalid(
            f"{name} is no setting of running nodes; nothing was changed: it takes effect "
            f"{start.takes_effect}"
        )


def _print(name: str, found: ShownSetting, as_json: bool) -> None:
    if as_json:
        print_json({"name": name, **found._asdict()})
    else:
        print_line(str(found.value))
