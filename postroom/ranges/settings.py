"""The settings of a store that change while it runs, as one record of the root.

::

    postroom settings set ─ChangeSetting─▶ 03 <root> 05 "settings"  →  {name: value}
                                              │ each node has a replica of the root
    parts of a node ── ask each time ──▶ SettingsInForce: the stored value, else that of its start

A setting that the store has not is that of each node's start, such as ``serve --slow``. A stored
value counts for all nodes, also after a restart, until it is reset. A cluster begins with stored
values for splits (:data:`FOUNDING`), and a reset gives it these again.

The number of settings is that of :data:`SETTINGS`; so the record is small. Names of a later version
stay in it, and are not told.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, ClassVar, Final, NamedTuple, TypeAlias

import msgspec

from postroom import limits
from postroom.errors import Invalid
from postroom.kv import keys
from postroom.kv.engine import ValueReader, WriteSet
from postroom.ranges.contract import ROOT_ID, Command, ConcernsRoot, Read, Role
from postroom.ranges.evaluation import Evaluation, View
from postroom.ranges.ports import Registry
from postroom.ranges.rights import Verb

SETTINGS_KEY: Final = keys.record_key(ROOT_ID, "settings")

DISK_RESERVE: Final = "disk-reserve"
GC_INTERVAL: Final = "gc-interval"
GC_TTL: Final = "gc-ttl"
POLL: Final = "poll"
SLOW: Final = "slow"
SPLIT_BYTES: Final = "split-bytes"
SPLIT_LOAD: Final = "split-load"
OFF: Final = math.inf
"""The value of ``slow`` with which nothing is logged."""

Number: TypeAlias = int | float
SettingName: TypeAlias = Annotated[
    str, msgspec.Meta(min_length=1, max_length=limits.SETTING_NAME_CHARACTERS_MAX)
]


class Setting(NamedTuple):
    """A setting that changes while the store runs.

    Attributes:
        meaning: the meaning, for people.
        unit: the unit of its values, such as ``bytes``. Bytes are whole.
        least, most: the range of its values.
        default: the value without any other word.
        besides: another possible value; ``None``: there is none.
    """

    meaning: str
    unit: str
    least: Number
    most: Number
    default: Number
    besides: Number | None = None

    @property
    def range(self) -> str:
        """Return the possible values, for people."""
        besides = "" if self.besides is None else f"{told(self.besides)}, or "
        return f"{besides}{told(self.least)} to {told(self.most)}"

    def takes(self, value: Number) -> bool:
        """Return whether it may have a value."""
        if self.unit == "bytes" and not isinstance(value, int):
            return False
        return value == self.besides or self.least <= value <= self.most


SETTINGS: Final[Mapping[str, Setting]] = {
    DISK_RESERVE: Setting(
        "a node takes no writes of clients while less is free on its device",
        "bytes", 0, limits.SETTING_BYTES_MAX, limits.DISK_RESERVE_BYTES,
    ),
    GC_INTERVAL: Setting(
        "the time from one collection of garbage in a range to the next, at least",
        "seconds", limits.GC_INTERVAL_SECONDS, limits.GC_INTERVAL_SECONDS_MAX,
        limits.GC_INTERVAL_SECONDS,
    ),
    GC_TTL: Setting(
        "the time for which overwritten versions stay readable; they are kept for 75 s at least",
        "seconds", 1, limits.GC_TTL_SECONDS_MAX, limits.GC_TTL_SECONDS,
    ),
    POLL: Setting(
        "the time after which a node looks for work that it has not heard of",
        "seconds", limits.POLL_SECONDS_MIN, limits.POLL_SECONDS_MAX, limits.POLL_SECONDS,
    ),
    SLOW: Setting(
        "commits and locks that take this long are logged, with all conflicts",
        "seconds", 0, limits.SLOW_SECONDS_MAX, OFF, OFF,
    ),
    SPLIT_BYTES: Setting(
        "a range that holds more is split; 0: never; new clusters begin with 512 MiB",
        "bytes", limits.SPLIT_BYTES_MIN, limits.SETTING_BYTES_MAX, 0, 0,
    ),
    SPLIT_LOAD: Setting(
        "a range that takes more of a processor for 10 s is split, if there are several nodes; "
        "0: never; new clusters begin with 0.5",
        "processors", limits.SPLIT_LOAD_MIN, limits.SPLIT_LOAD_MAX, 0, 0,
    ),
}  # fmt: skip


FOUNDING: Final[Mapping[str, Number]] = {
    SPLIT_BYTES: limits.SPLIT_BYTES,
    SPLIT_LOAD: limits.SPLIT_LOAD,
}
"""The settings with which a new cluster begins, if it is told no others."""


def told(value: Number) -> Number | str:
    """Return a value as people and JSON know it."""
    if value == OFF:
        return "off"
    return int(value) if value == int(value) else value


# --- requests -------------------------------------------------------------------------------------


class SettingValue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The value of a setting.

    Attributes:
        name: the name of the setting.
        value: the value, in the unit of the setting. Infinite seconds are ``off``.
        is_stored: whether the store has it. If not, it is that of the start of the node that
            leads the first range.
    """

    name: str
    value: Number
    is_stored: bool


class ReadSettings(ConcernsRoot, Read, frozen=True, tag="read_settings"):
    """A request for the values of all settings."""

    answer: ClassVar = list[SettingValue]
    since: ClassVar = 2
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN


class ChangeSetting(ConcernsRoot, Command, frozen=True, tag="change_setting"):
    """A request to change a setting; it answers with the value that the setting has then.

    It is taken on a full device: the reserve is a setting.

    Attributes:
        name: the name of the setting.
        value: the value; ``None``: as the nodes were started, or as a new cluster begins.
        is_default: whether an earlier value stays.
    """

    answer: ClassVar = SettingValue
    since: ClassVar = 2
    verbs: ClassVar = (Verb.ADMIN,)
    role: ClassVar = Role.ADMIN
    frees_room: ClassVar = True

    name: SettingName
    value: Number | None
    is_default: bool = False


# --- the record -----------------------------------------------------------------------------------

_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_decode: Final = msgspec.msgpack.Decoder(dict[str, Number]).decode


def founding_settings(words: Mapping[str, Number]) -> WriteSet:
    """Return the record with which a cluster begins, with the words of the node that founds it."""
    return {SETTINGS_KEY: _encode({**FOUNDING, **words})}


def _stored(stored: ValueReader) -> dict[str, Number]:
    packed = stored.get(SETTINGS_KEY)
    return {} if packed is None else _decode(packed)


class SettingsInForce:
    """The settings that are in force on a node.

    Args:
        started: those of its start, by name; others have their defaults.
        stored: the record; ``None``: there is none.
        founding: the settings that a reset gives other values than those of the start.
    """

    def __init__(
        self,
        started: Mapping[str, Number],
        stored: bytes | None = None,
        founding: Mapping[str, Number] = MappingProxyType({}),
    ) -> None:
        self._founding = founding
        self._started = {name: each.default for name, each in SETTINGS.items()} | dict(started)
        self.take(stored)

    def take(self, stored: bytes | None) -> None:
        """Take the record as it is now."""
        self._stored = {} if stored is None else _decode(stored)

    def __getitem__(self, name: str) -> Number:
        stored = self._stored.get(name)
        return self._started[name] if stored is None else stored

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def reader(self, name: str) -> Callable[[], Number]:
        """Return a function that returns the value of a setting as it is then."""
        return partial(self.__getitem__, name)

    # --- evaluators

    def register(self, registry: Registry) -> None:
        """Register the evaluators at the root."""
        registry.reads[ReadSettings] = self._read
        registry.commands[ChangeSetting] = self._change

    def _read(self, view: View, _: ReadSettings) -> list[SettingValue]:
        stored = _stored(view)
        return [self._told(name, stored) for name in SETTINGS]

    def _told(self, name: str, stored: Mapping[str, Number]) -> SettingValue:
        return SettingValue(name, stored.get(name, self._started[name]), name in stored)

    def _change(self, ctx: Evaluation, request: ChangeSetting) -> SettingValue:
        check(request.name, request.value)
        stored = _stored(ctx)
        if not (request.is_default and request.name in stored):
            stored.pop(request.name, None)
            value = self._founding.get(request.name) if request.value is None else request.value
            if value is not None:
                stored[request.name] = value
            ctx.writes[SETTINGS_KEY] = _encode(stored)
        return self._told(request.name, stored)


def check(name: str, value: Number | None) -> None:
    """Check that a setting may have a value.

    Raises:
        Invalid: there is no such setting, or the value is out of its range.
    """
    setting = SETTINGS.get(name)
    if setting is None:
        raise Invalid(
            f"there is no setting {name!r}; nothing was changed: settings are {', '.join(SETTINGS)}"
        )
    if value is not None and not setting.takes(value):
        raise Invalid(
            f"{name} is in {setting.unit}, {setting.range}, not {value}; nothing was changed"
        )
