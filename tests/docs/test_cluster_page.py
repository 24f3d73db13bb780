"""The commands of the page about clusters."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


@pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("bash")), reason="needs OpenSSL and bash"
)
def test_the_keys_and_tokens_of_the_page_are_for_their_owner_alone(tmp_path: Path) -> None:
    (commands,) = re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    subprocess.run(["bash", "-e", "-c", commands], cwd=tmp_path, check=True, capture_output=True)
    secrets = [tmp_path / "tokens", *tmp_path.glob("*.key")]
    assert len(secrets) == 4
    assert [path.name for path in secrets if path.stat().st_mode & 0o077] == []
    assert re.fullmatch(r"\S+\nadmin \S+\n", (tmp_path / "tokens").read_text())
