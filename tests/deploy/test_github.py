"""The files for GitHub: workflows with few rights and pinned actions, and forms for issues."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(
    set((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) - {GITHUB / "ISSUE_TEMPLATE/config.yml"}
)
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE/config.yml"],
    "vendor.dependabot": [GITHUB / "dependabot.yml"],
}


def ran(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def jobs(workflow: Path) -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = yaml.safe_load(workflow.read_text())["jobs"]
    return loaded


@pytest.mark.parametrize("schema", SCHEMAS)
def test_each_file_has_the_form_that_github_wants(schema: str) -> None:
    files = [str(each) for each in SCHEMAS[schema]]
    assert files
    ran(sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files)


def test_an_audit_of_the_workflows_finds_nothing() -> None:
    ran(
        str(Path(sys.executable).with_name("zizmor")),
        "--offline",
        "--persona=pedantic",
        str(GITHUB),
    )


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_each_action_is_pinned_to_a_commit(workflow: Path) -> None:
    used = re.findall(r"uses: (.*)", workflow.read_text())
    assert used
    assert [each for each in used if not re.fullmatch(r"\S+@[0-9a-f]{40} # v[\d.]+", each)] == []


def test_jobs_may_read_the_sources_and_only_the_last_one_may_publish() -> None:
    rights = {name: job["permissions"] for each in WORKFLOWS for name, job in jobs(each).items()}
    assert rights.pop("publish") == {"id-token": "write"}
    assert all(each == {"contents": "read"} for each in rights.values())
    assert {str(yaml.safe_load(each.read_text())["permissions"]) for each in WORKFLOWS} == {"{}"}


def test_the_checks_run_on_each_python_that_is_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    matrix = jobs(GITHUB / "workflows/checks.yml")["tests"]["strategy"]["matrix"]["include"]
    assert {*promised} <= {each["python"] for each in matrix}
