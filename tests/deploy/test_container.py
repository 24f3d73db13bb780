"""The Containerfile copies files that exist, and runs commands that exist, without root."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

from postroom.cli import options
from tests.deploy.commands import unknown_words

ROOT = Path(__file__).parents[2]
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
TEXT = CONTAINERFILE.read_text().replace("\\\n", " ")
VARIABLES = {each for name, each in vars(options).items() if name.endswith("_VARIABLE")}


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name} +(.*)$", TEXT, re.MULTILINE)


def listed(instruction: str) -> list[str]:
    """Return the words of an instruction in brackets."""
    words: list[str] = json.loads(instruction[instruction.index("[") :])
    return words


def test_a_linter_finds_no_fault_in_the_containerfile() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [linter, str(CONTAINERFILE)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout


def test_files_that_are_copied_exist_and_are_what_the_package_is_built_of() -> None:
    copied = [shlex.split(each)[:-1] for each in instructions("COPY") if "--from" not in each]
    names = {name for each in copied for name in each}
    assert [name for name in names if not (ROOT / name).exists()] == []
    needed = re.findall(r'^(?:readme = |license-files = \[|packages = \[)"(.*?)"',
                        (ROOT / "pyproject.toml").read_text(), re.MULTILINE)  # fmt: skip
    assert names == {"pyproject.toml", *needed}


def test_the_commands_of_the_container_exist() -> None:
    (entry,), (check,) = instructions("ENTRYPOINT"), instructions("HEALTHCHECK")
    program, *serve = listed(entry)
    assert program == "postroom"
    assert unknown_words(serve) == []
    example = CONTAINERFILE.read_text().partition(" postroom --listen ")[2].partition("\n#\n")[0]
    assert unknown_words(["serve", *re.findall(r"--[a-z-]+", example)]) == []
    program, *status = listed(check)
    assert program == "postroom"
    assert status == ["status", "--check"]
    assert unknown_words(status) == []


def test_the_variables_of_the_container_are_those_of_the_command_line() -> None:
    told = set(re.findall(r"POSTROOM_[A-Z_]+", TEXT))
    assert told
    assert told <= VARIABLES


def test_the_container_does_not_run_as_root_and_keeps_its_data_in_a_volume() -> None:
    assert instructions("USER") == ["10001"]
    (volume,), (entry,) = instructions("VOLUME"), instructions("ENTRYPOINT")
    assert listed(entry)[-1].startswith(f"{volume}/")
