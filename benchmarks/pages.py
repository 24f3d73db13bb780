"""The pages of a store with a million messages: how soon a browser shows each of them.

::

    Chromium ── HTTP ──▶ 'postroom web --path', a process of its own ──▶ its store

A part of the messages lies in many inboxes and queues, another part in one of each, the rest waits
for its time. A page is measured once when the process has just begun, and then again and again.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import postroom
from benchmarks.cluster import free_addresses
from benchmarks.harness import Measured, Settings, benchmark

MESSAGES: Final = 1_000_000
MESSAGES_A_TRANSACTION: Final = 1000
INBOXES: Final = 10_000
QUEUES: Final = 100
TIMES: Final = 15
DAY_SECONDS: Final = 86_400
PAGES: Final = {
    "overview": "/", "inboxes": "/inboxes", "inbox": "/inbox?key=large", "queues": "/queues",
    "queue": "/queue?queue=large", "scheduled": "/scheduled", "dead": "/dead-letters",
    "keys": "/keys", "workers": "/workers", "cluster": "/cluster",
}  # fmt: skip
FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip
_PAINTED: Final = "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime"

Visit = Callable[[str], float]
"""A function that visits an address, and returns milliseconds."""


def _send(tx: postroom.Transaction, number: int) -> None:
    """Send one of ten messages to a queue, an inbox, or into the future."""
    payload = b"%0100d" % number
    match number % 10:
        case 0:
            tx.enqueue_message(b"later/%d" % number, payload, deliver_at=DAY_SECONDS)
        case 1:
            tx.enqueue_message(b"large", payload)
        case 2 | 3 | 4:
            tx.enqueue_message(b"inbox/%d" % (number % INBOXES), payload)
        case 5:
            tx.enqueue(f"queue {number // 10 % QUEUES}", payload)
        case _:
            tx.enqueue("large", payload)


def _fill(path: Path, settings: Settings) -> None:
    messages = settings.size(MESSAGES)
    with postroom.open(path, durability="none", engine=settings.engine) as db:
        for name in ("large", *(f"queue {number}" for number in range(QUEUES))):
            db.create_queue(name)
        for first in range(0, messages, MESSAGES_A_TRANSACTION):
            with db.begin() as tx:
                for number in range(first, min(first + MESSAGES_A_TRANSACTION, messages)):
                    _send(tx, number)
                    tx.put(b"key/%d" % number, b"")


@contextmanager
def _served(path: Path) -> Iterator[str]:
    """Serve the pages of a store in another process; yield their address."""
    (address,) = free_addresses(1)
    command = [sys.executable, "-m", "postroom", "web", "--path", str(path), "--listen", address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            while not process.stderr.readline().startswith("ready"):
                if process.poll() is not None:
                    raise RuntimeError("the pages are not served")
            yield f"http://{address}"
        finally:
            process.send_signal(signal.SIGTERM)


def _answered(address: str) -> float:
    start = time.perf_counter()
    with urllib.request.urlopen(address) as answer:
        answer.read()
    return (time.perf_counter() - start) * 1000


@contextmanager
def _browser(folder: Path) -> Iterator[Visit | None]:
    """Yield a function that measures the first paint; ``None``: there is no Chromium."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver and importlib.util.find_spec("selenium")):
        yield None
        return
    from selenium import webdriver  # noqa: PLC0415 - of an extra

    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.binary_location = chromium
    browser: Any = webdriver.Chrome(options, webdriver.ChromeService(driver))

    def painted(address: str) -> float:
        browser.get(address)
        while (found := browser.execute_script(_PAINTED)) is None:
            pass
        return float(found)

    try:
        yield painted
    finally:
        browser.quit()


@benchmark("pages: the slowest first paint", "ms", 200, at_most=True)
def first_paint(settings: Settings) -> Measured:
    """Measure pages of a million messages in Chromium; without it, their answers over HTTP."""
    path = settings.folder / "store"
    _fill(path, settings)
    times = max(int(TIMES * settings.scale), 1)
    details = {}
    with _served(path) as address, _browser(settings.folder / "browser") as painted:
        for name, page in PAGES.items():
            details[f"{name}_first_http"] = _answered(address + page)
            answered = [_answered(address + page) for _ in range(times)]
            details[f"{name}_http"] = statistics.median(answered)
        for name, page in PAGES.items() if painted else ():
            assert painted is not None
            details[name] = statistics.median(painted(address + page) for _ in range(times))
    slowest = max(details[name if painted else f"{name}_http"] for name in PAGES)
    return Measured(slowest, {name: round(value, 1) for name, value in details.items()})
