"""Promises that are broken on purpose: each function tells one line of the product to replace.

:mod:`tests.sim.cluster.mutations` puts them in force, one at a time.
"""

from __future__ import annotations

from typing import Any

Patch = tuple[Any, str, Any]
"""The place of a patch, the name in it, and its substitute."""
