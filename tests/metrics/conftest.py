"""Fixtures of nodes for tests of metrics."""

from __future__ import annotations

from tests.server.cluster.conftest import addresses

__all__ = ["addresses"]
