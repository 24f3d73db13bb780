"""The units of systemd are valid, run commands that exist, and wait for a node to be ready."""

from __future__ import annotations

import configparser
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.deploy.commands import unknown_words
from tests.gateway.processes import WAIT_SECONDS, free_address, running

DEPLOY = Path(__file__).parents[2] / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
COMMAND = "/opt/postroom/bin/postroom"
EXPOSURE_MAX = "20"
"""The highest exposure of a node of a cluster, of 100, as systemd counts it."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="needs systemd-analyze"
)


def service(unit: Path) -> dict[str, str]:
    """Return the settings of a service; of those that come several times, the last one."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    return dict(parser["Service"])


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_finds_no_fault_in_a_unit(tmp_path: Path, unit: Path) -> None:
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace(COMMAND, shutil.which("true") or ""))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)],
        capture_output=True, text=True, check=False, timeout=WAIT_SECONDS,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
def test_a_node_of_a_cluster_is_shut_off_from_the_machine() -> None:
    command = ["systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}"]
    done = subprocess.run(
        [*command, str(DEPLOY / "postroom@.service")],
        capture_output=True, text=True, check=False, timeout=WAIT_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_runs_a_command_with_options_that_exist(unit: Path) -> None:
    program, *words = shlex.split(service(unit)["ExecStart"])
    assert program == COMMAND
    assert unknown_words(words) == []


def test_a_word_that_no_command_has_is_found() -> None:
    assert unknown_words(["serve", "--path", "x", "--jion=x"]) == ["--jion=x"]
    assert unknown_words(["serv", "--path", "x"]) == ["serv"]


def test_a_node_that_cannot_be_used_so_or_was_removed_is_not_started_again() -> None:
    for unit in ("postroom.service", "postroom@.service"):
        settings = service(DEPLOY / unit)
        assert (settings["Restart"], settings["RestartPreventExitStatus"]) == ("on-failure", "2")


def test_a_node_tells_the_service_manager_that_it_is_ready_and_that_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service(DEPLOY / "postroom@.service")["Type"] == "notify"
    serve = ("serve", "--insecure", "--path", str(tmp_path / "store"), "--listen")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(WAIT_SECONDS)
        manager.bind(b"\0postroom-" + str(tmp_path).encode())
        monkeypatch.setenv("NOTIFY_SOCKET", f"@postroom-{tmp_path}")
        with running(*serve, free_address()):
            assert manager.recv(100) == b"READY=1"
        assert manager.recv(100) == b"STOPPING=1"


def test_a_node_serves_while_its_service_manager_does_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    serve = ("serve", "--insecure", "--path", str(tmp_path / "store"), "--listen")
    with running(*serve, free_address()):
        pass
