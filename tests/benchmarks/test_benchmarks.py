"""The benchmarks run, and say what they should. How fast is no test's business."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks.__main__  # noqa: F401 - importing registers them
from benchmarks import growth, latencies, latencies_subjects, tail
from benchmarks.growth_subjects import SUBJECTS
from benchmarks.harness import REGISTRY, summarize
from benchmarks.latencies_peers import PEERS

ROOT = Path(__file__).parents[2]
MEMORY = Path("/dev/shm")
ROOM_BYTES = 2 << 30
PARTS = 8
IN_ONE_PROCESS = """
import json, sys
import benchmarks.__main__
from benchmarks.harness import run_here
for name in sys.argv[1:]:
    print(json.dumps(run_here(name, seconds=0.05, scale=0.001, engine=None)), flush=True)
"""
"""A program that runs benchmarks in one process: most of them take less time than its start."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(autouse=True)
def in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep temporary folders in memory, if there is room for three nodes and their reserves.

    The speed of a device's syncs is no subject of tests. In containers the folder often has 64 MiB.
    """
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM_BYTES:
        monkeypatch.setenv("TMPDIR", str(MEMORY))


@pytest.mark.parametrize("part", range(PARTS))
def test_each_of_them_runs_and_answers_what_it_measured(part: int) -> None:
    names = list(REGISTRY)[part::PARTS]
    command = [sys.executable, "-c", IN_ONE_PROCESS, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = map(json.loads, done.stdout.splitlines())
    for name, answer in zip(names, answers, strict=True):
        row = summarize(name, [answer])
        assert row["max"] > 0 or row["unit"] == "ms", row


def test_the_results_of_chosen_benchmarks_are_written(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    done = run("--quick", "--only", "one at a time (a", "--only", "open :", "--json", str(results))
    assert done.returncode == 0, done.stderr
    rows = json.loads(results.read_text())["results"]
    assert [row["name"] for row in rows] == [
        name for name in REGISTRY if "one at a time (a" in name or "open :" in name
    ]
    assert len(rows) >= 3
    for row in rows:
        assert row["min"] <= row["median"] <= row["max"], row
        assert row["name"] in done.stdout


@pytest.mark.parametrize("name", SUBJECTS)
def test_each_subject_is_measured_at_four_sizes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name != "keys":  # processes of their own take longer to start than there is to measure
        monkeypatch.setattr(growth, "measure", growth.measure_here)
    results = tmp_path / "results.json"
    asked = ["--only", name, "--scale", "0.0003", "--seconds", "0.02", "--json", str(results)]
    assert growth.main(asked) == 0
    rows = [row for row in json.loads(results.read_text())["results"] if row["subject"] == name]
    assert rows
    for row in rows:
        assert len(row["sizes"]) == len(row["values"]) == 4
        assert row["sizes"] == sorted(row["sizes"])
        assert row["measure"].endswith("]") or row["last_to_first"] > 0
    assert name != "keys" or {"get", "scan", "transaction", "fill"} <= {
        row["measure"] for row in rows if row["to_sqlite"]
    }


def test_growth_prints_a_table_of_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--only", "delete_range", "--scale", "0.0001", "--seconds", "0.02", "--markdown"]
    assert growth.main(asked) == 0
    head, line, *rows = capsys.readouterr().out.splitlines()
    assert rows[0].startswith("| delete_range (40): ")
    assert {row.count(" | ") for row in (head, line, *rows)} == {6}


def test_growth_is_a_command_of_its_own() -> None:
    listed = run("growth", "--list").stdout.splitlines()
    assert [line.partition(": ")[0] for line in listed if ": " in line][:1] == ["keys"]
    assert run("growth", "--only", "no such subject").returncode == 1


def test_all_are_listed() -> None:
    listed = run("--list").stdout.splitlines()
    assert len(REGISTRY) >= 50
    assert all(any(line.startswith(f"{name}: ") for line in listed) for name in REGISTRY)


def test_a_benchmark_of_memory_does_not_load_the_libraries_of_others() -> None:
    """Each runs in a process of its own, which knows them all."""
    code = "import sys, benchmarks.__main__; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
    loaded = ran.stdout.decode().split()
    assert "benchmarks.etcd" in loaded
    assert not {"grpc", "pyspark", "pyarrow"} & set(loaded)


def test_a_benchmark_that_fails_says_so() -> None:
    done = run("--child", "no such benchmark")
    assert done.returncode != 0


def test_an_empty_choice_of_benchmarks_is_an_error() -> None:
    assert run("--only", "no such benchmark").returncode == 1


def test_two_versions_are_measured_by_turns() -> None:
    """This one twice."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.by_turns", str(ROOT), "--only", "open :memory:",
         "--rounds", "2", "--seconds", "0.05", "--scale", "0.001"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    title, row = done.stdout.splitlines()
    assert title.split() == ["benchmark", "before", "now", "ratio", "ranges"]
    assert float(row.split()[4]) > 0


@pytest.mark.parametrize("place", ["embedded", "threads", "3 nodes", *PEERS])
def test_latencies_of_each_place_are_measured_and_printed(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    asked = ["--place", place, "--times", "1", "--rounds", "1", "--json", str(results)]
    assert latencies.main(asked) == 0
    [medians] = json.loads(results.read_text())["results"][place]
    assert list(medians) == [name for name in latencies_subjects.NAMES if name in medians]
    assert place in PEERS or len(medians) == len(latencies_subjects.NAMES)
    assert medians["put"] > 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in (place, *medians))


@pytest.mark.parametrize("name", tail.rows())
def test_tails_of_each_row_are_measured_and_printed(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "results.json"
    asked = ["--only", name, "--keys", "50", "--seconds", "0.05", "--rounds", "1"]
    assert tail.main([*asked, "--json", str(results)]) == 0
    [percentiles] = json.loads(results.read_text())["results"][name]
    assert 0 < percentiles["50 %"] <= percentiles["99 %"] <= percentiles["most"]
    assert name in capsys.readouterr().out
