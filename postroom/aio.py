"""The asyncio forms: the same names, awaited where they may have to wait."""

from postroom.client.database import Database, Snapshot
from postroom.client.transaction import Transaction
from postroom.client.transactional import transactional
from postroom.server.embedded import open_async as open  # noqa: A004 - a public name

__all__ = ["Database", "Snapshot", "Transaction", "open", "transactional"]
