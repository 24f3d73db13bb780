"""The command ``worker``: runs the tasks of an application."""

from __future__ import annotations

import asyncio
import importlib
import logging
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer

import postroom
import postroom.aio
from postroom.cli.options import StoreOptions, on_a_store_if_given
from postroom.client.codec import resolve
from postroom.errors import Error


@on_a_store_if_given
def worker(
    store: StoreOptions | None,
    application: Annotated[str, typer.Argument(metavar="MODULE:NAME", show_default=False)],
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Work on at most N messages at a time.", show_default=False
        ),
    ] = None,
    queues: Annotated[
        str | None, typer.Option(metavar="NAME,...", help="Run only the tasks of these queues.")
    ] = None,
    codec: Annotated[
        str | None,
        typer.Option(
            metavar="CODEC", help="Use this codec: msgpack or json.", show_default="bytes"
        ),
    ] = None,
) -> None:
    """Run the worker NAME of the Python module MODULE (app:worker) until SIGTERM or Ctrl-C.

    It finishes what it has begun; a second signal cancels that. The store is the worker's own, or
    the one that the options name. Standard error says "ready", and reports failures.
    """
    _check_codec(codec)
    found = _import_worker(application)
    chosen = None if queues is None else [each.strip() for each in queues.split(",")]
    _check(found, store, chosen)
    logging.basicConfig(
        level=logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    options: dict[str, Any] = {
        "queues": chosen,
        "concurrency": concurrency,
        "signals": True,
        "ready": _say_ready,
    }
    if isinstance(found, postroom.Worker):
        _run(found, store, codec, options)
    else:
        asyncio.run(_run_async(found, store, codec, options))


def _check_codec(codec: str | None) -> None:
    try:
        resolve(codec)
    except ValueError:
        raise typer.BadParameter(
            f"{codec!r} is neither msgpack nor json", param_hint="--codec"
        ) from None


def _import_worker(application: str) -> postroom.Worker | postroom.aio.Worker:
    module_name, _, name = application.partition(":")
    if not module_name or not name:
        raise typer.BadParameter("a worker is written MODULE:NAME, as app:worker")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # any type: it is the application's
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{module_name}.".startswith(f"{missing}."):
            raise typer.BadParameter(f"there is no module {module_name!r} here") from None
        raise Error(
            f"the module {module_name!r} cannot be imported: {_with_its_line(error)}"
        ) from error
    found = getattr(module, name, None)
    if not isinstance(found, postroom.Worker | postroom.aio.Worker):
        raise typer.BadParameter(f"{module_name} has no worker {name!r}")
    return found


def _with_its_line(error: Exception) -> str:
    """Return the type and text of an error, and the line that it comes from."""
    told = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):  # its text names the line
        return told
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{told} ({last.filename}, line {last.lineno})"


def _run(
    found: postroom.Worker, store: StoreOptions | None, codec: str | None, options: dict[str, Any]
) -> None:
    if store is None:
        found.run(**options)
        return
    with store.open_for(codec) as db:
        found.bind(db)
        found.run(**options)


async def _run_async(
    found: postroom.aio.Worker,
    store: StoreOptions | None,
    codec: str | None,
    options: dict[str, Any],
) -> None:
    if store is None:
        await found.run(**options)
        return
    async with await store.open_async(codec) as db:
        found.bind(db)
        await found.run(**options)


def _check(
    found: postroom.Worker | postroom.aio.Worker,
    store: StoreOptions | None,
    chosen: list[str] | None,
) -> None:
    """Check all that can be checked before a store is opened, and perhaps made."""
    if not found.has_tasks:
        raise Error(
            "the worker has no tasks: decorate functions with @worker.task or @worker.inbox"
        )
    tasks, _ = found.chosen(chosen)
    if store is None:
        assert found.db is not None  # otherwise it has said what to do
    elif tasks:
        store.check_folder()  # a new store has no queues


def _say_ready() -> None:
    print("ready", file=sys.stderr, flush=True)  # noqa: T201 - what the caller waits for
