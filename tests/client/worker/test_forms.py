"""A worker takes a database of its own form, and the synchronous one has a loop of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import postroom
import postroom.aio


def test_a_worker_refuses_a_database_of_the_other_form() -> None:
    async def main() -> None:
        async with await postroom.aio.open(":memory:") as db:
            other: Any = db
            for make in (postroom.Worker, postroom.Worker().bind):
                with pytest.raises(
                    TypeError, match=r"for one of postroom\.aio there is postroom\.aio\.Worker"
                ):
                    make(other)

    asyncio.run(main())
    with postroom.open(":memory:") as db:
        other: Any = db
        for make in (postroom.aio.Worker, postroom.aio.Worker().bind):
            with pytest.raises(TypeError, match=r"there is postroom\.Worker"):
                make(other)


@pytest.mark.parametrize("given", [3, "data/shop"])
def test_a_worker_refuses_an_object_that_is_no_database(given: Any) -> None:
    with pytest.raises(TypeError, match="takes a database"):
        postroom.Worker(given)


@pytest.mark.parametrize("call", ["run", "run_until_idle"])
def test_a_synchronous_worker_is_refused_on_a_running_event_loop(call: str) -> None:
    with postroom.open(":memory:") as db:
        worker = postroom.Worker(db)
        worker.inbox(b"k")(lambda message, tx: None)

        async def main() -> None:
            with pytest.raises(postroom.Invalid, match=r"asyncio\.to_thread\(worker\.run\)"):
                getattr(worker, call)()
            assert await asyncio.to_thread(worker.run_until_idle) == 0

        asyncio.run(main())
