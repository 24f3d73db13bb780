"""``postroom settings``: typed settings, with their ranges, and whether a restart is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

import postroom
from postroom.cli.settings import NAMES
from postroom.limits import MEMORY_BYTES
from tests.cli.commands import failed_with, invoke, lines, records
from tests.gateway.processes import free_address, running


@pytest.fixture
def store(tmp_path: Path) -> tuple[str, str]:
    postroom.open(tmp_path / "store").close()
    return "--path", str(tmp_path / "store")


def test_settings_of_a_new_store_are_the_defaults(store: tuple[str, str]) -> None:
    listed = {each["name"]: each for each in records("settings", "list", *store)}
    assert list(listed) == NAMES
    assert listed["split-bytes"] == {"name": "split-bytes", "value": 0, "source": "default"}
    assert listed["memory"]["value"] == MEMORY_BYTES
    assert listed["engine"]["value"] in {"leveldb", "rocksdb"}


def test_a_setting_is_changed_at_once_for_other_clients(tmp_path: Path) -> None:
    address = free_address()
    node = ("--connect", address, "--insecure")
    with running(
        "serve", "--insecure", "--data", str(tmp_path / "a"), "--listen", address,
        "--memory", "16MiB",
    ), postroom.connect(address, insecure=True) as db:  # fmt: skip
        assert lines("settings", "set", "split-bytes", "8MiB", *node) == ["8388608"]
        assert db.configure_ranges() == 8 << 20
        assert lines("settings", "get", "split-bytes", *node) == ["8388608"]
        listed = {each["name"]: each for each in records("settings", "list", *node)}
        memory, split = listed["memory"], listed["split-bytes"]
        assert memory == {"name": "memory", "value": 16 << 20, "source": "--memory"}
        assert split == {"name": "split-bytes", "value": 8 << 20, "source": "the store"}


@pytest.mark.parametrize("value", ["7.5", "off"])
def test_a_setting_in_seconds_is_changed_and_reset(store: tuple[str, str], value: str) -> None:
    assert lines("settings", "set", "slow", value, *store) == [value]
    assert lines("settings", "get", "slow", *store) == [value]
    (told,) = records("settings", "reset", "slow", *store)
    assert told == {"name": "slow", "value": "off", "source": "default"}


def test_the_load_from_which_ranges_split_is_a_part_of_a_processor(
    store: tuple[str, str],
) -> None:
    assert lines("settings", "set", "split-load", "0.5", *store) == ["0.5"]
    for value in ("0.05", "65", "much"):
        assert invoke("settings", "set", *store, "--", "split-load", value).exit_code == 2
    assert lines("settings", "set", "split-load", "0", *store) == ["0"]


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "off", "1e9", "soon", ""])
def test_a_time_out_of_range_changes_nothing(store: tuple[str, str], value: str) -> None:
    assert invoke("settings", "set", *store, "--", "gc-ttl", value).exit_code == 2
    assert lines("settings", "get", "gc-ttl", *store) == ["60"]


@pytest.mark.parametrize("value", ["1", "many", "-1", ""])
def test_a_value_out_of_range_changes_nothing(store: tuple[str, str], value: str) -> None:
    lines("settings", "set", "split-bytes", "8MiB", *store)
    assert invoke("settings", "set", *store, "--", "split-bytes", value).exit_code == 2
    assert lines("settings", "get", "split-bytes", *store) == ["8388608"]


@pytest.mark.parametrize(("name", "option"), [("memory", "--memory"), ("engine", "--engine")])
def test_a_setting_of_a_start_names_its_option(
    store: tuple[str, str], name: str, option: str
) -> None:
    told = invoke("settings", "set", name, "1GiB", *store)
    assert failed_with(told, 1, "nothing was changed", option)


def test_an_unknown_setting_names_the_known_ones(store: tuple[str, str]) -> None:
    assert failed_with(invoke("settings", "get", "colour", *store), 2, "disk-reserve, engine")


@pytest.mark.parametrize("name", NAMES)
def test_each_setting_is_explained(name: str) -> None:
    (told,) = records("settings", "explain", name)
    assert set(told) == {"name", "meaning", "type", "range", "default", "takes_effect"}
    assert [line.partition("\t")[0] for line in lines("settings", "explain", name)] == [
        "name", "meaning", "type", "range", "default", "takes effect",
    ]  # fmt: skip
