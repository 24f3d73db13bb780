"""One budget is shared out to all that keeps the store in memory."""

from __future__ import annotations

import pytest

from postroom.kv.engine import Budget
from postroom.limits import MEMORY_BYTES, MEMORY_BYTES_MIN, WRITE_BUFFER_BYTES_MAX

GIB = 1 << 30


@pytest.mark.parametrize("memory_bytes", [MEMORY_BYTES_MIN, MEMORY_BYTES, GIB, 64 * GIB])
def test_the_shares_are_no_more_than_the_budget(memory_bytes: int) -> None:
    budget = Budget(memory_bytes)
    caches = budget.values_bytes, budget.heads_bytes, budget.blocks_bytes
    shares = 2 * budget.write_buffer_bytes, *caches
    assert all(share > 0 for share in shares)
    assert sum(shares) == memory_bytes


def test_a_memtable_has_a_limit_because_opening_after_a_crash_reads_it_again() -> None:
    assert Budget(64 * GIB).write_buffer_bytes == WRITE_BUFFER_BYTES_MAX


def test_a_budget_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="memory_bytes is at least 8388608"):
        Budget(MEMORY_BYTES_MIN - 1)
