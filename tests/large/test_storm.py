"""Ten thousand connections, as fast as they can be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.node_process import bear_a_storm, node_process


@pytest.mark.parametrize("secure", [False, True], ids=["insecure", "with TLS"])
def test_ten_thousand_connections_leave_clients_served(tmp_path: Path, *, secure: bool) -> None:
    with node_process(tmp_path, secure=secure) as node:
        bear_a_storm(node, attempts=10_000, commits=200, rehearsed=True)
