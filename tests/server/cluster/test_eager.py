"""A coroutine whose first step is taken at once."""

from __future__ import annotations

import asyncio

from postroom.server.cluster.eager import Eager


def test_the_first_step_is_taken_before_anything_else() -> None:
    async def main() -> None:
        seen: list[object] = []

        async def work() -> None:
            seen.append("begun")

        Eager(work(), lambda error: seen.append(("done", error)))
        assert seen == ["begun"]  # and the end is told later
        await asyncio.sleep(0)
        assert seen == ["begun", ("done", None)]

    asyncio.run(main())


def test_it_goes_on_when_what_it_awaits_ends() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        first, second, done = (loop.create_future() for _ in range(3))
        results: list[int] = []

        async def work() -> None:
            results.append(await first)
            await asyncio.sleep(0)  # a bare yield
            results.append(await second)

        Eager(work(), done.set_result)
        first.set_result(1)
        second.set_result(2)
        assert await done is None
        assert results == [1, 2]

    asyncio.run(main())


def test_errors_are_told_wherever_they_come_up() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def fails_at_once() -> None:
            raise ValueError("first")

        async def fails_later(awaited: asyncio.Future[None]) -> None:
            await awaited

        done = loop.create_future()
        Eager(fails_at_once(), done.set_result)
        assert str(await done) == "first"

        done, awaited = loop.create_future(), loop.create_future()
        Eager(fails_later(awaited), done.set_result)
        awaited.set_exception(ValueError("later"))
        assert str(await done) == "later"

        done, awaited = loop.create_future(), loop.create_future()
        Eager(fails_later(awaited), done.set_result)
        awaited.cancel()
        assert isinstance(await done, asyncio.CancelledError)

    asyncio.run(main())
