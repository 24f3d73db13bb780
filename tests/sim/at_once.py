"""Several calls of one client at the same time, as ``asyncio.gather`` makes them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Any

from postroom.client.database import CoreDatabase
from tests.sim.sender import Killed, Pause


async def at_once(db: CoreDatabase, *calls: Awaitable[Any]) -> list[Any]:
    """Return the results of ``calls``, which are all under way together.

    Raises:
        BaseException: what one of them raised, when all of them have ended.
    """
    world = getattr(db._sender, "world", None)
    if world is None:  # a real store
        return await _gathered(calls)
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []
    all_done = Pause()
    left = len(calls)

    async def carry_out(place: int, call: Awaitable[Any]) -> None:
        nonlocal left
        try:
            results[place] = await call
        except Killed:
            return  # the whole process was
        except Exception as error:
            errors.append(error)
        left -= 1
        if not left:
            world.resume(all_done)

    for place, call in enumerate(calls):
        world.spawn(f"call {place}", carry_out(place, call))
    await all_done
    if errors:
        raise errors[0]
    return results


async def _gathered(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
