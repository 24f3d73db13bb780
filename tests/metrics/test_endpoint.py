"""The endpoint for scrapers: answers, limits, and nodes in trouble."""

from __future__ import annotations

import asyncio
import gc
import http.client
import socket
import threading
import time
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from postroom import limits
from postroom.errors import Invalid
from postroom.metrics import endpoint, sampling
from postroom.metrics.collector import StoreCollector
from postroom.metrics.endpoint import Endpoint
from postroom.metrics.table import Point
from tests.cluster.harness import eventually
from tests.gateway.processes import free_address
from tests.metrics.scraping import ANSWER_SECONDS, Scraped, scraped, text_at

FLOOD = 1000


class ScriptedSource:
    """A node that answers when the test lets it."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = 0
        self.queues = 1

    def points(self) -> list[Point]:
        self.asked += 1
        self.may_answer.wait()
        labels = [(f"{number:0250}",) for number in range(self.queues)]
        return [
            Point("postroom_term", 7),
            *(Point("postroom_queue_consumers", 1, each) for each in labels),
        ]

    def is_here(self) -> bool:
        return False


@contextmanager
def listening(source: ScriptedSource) -> Iterator[str]:
    """Serve the metrics of a source at an address."""
    address, over = free_address(), threading.Event()
    ready = threading.Event()

    async def main() -> None:
        made = Endpoint(address, StoreCollector(source))
        await made.start()
        ready.set()
        await asyncio.to_thread(over.wait)
        await made.stop()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(10)
        yield address
    finally:
        over.set()
        source.may_answer.set()
        thread.join()


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def test_a_scraper_is_answered_in_the_format_that_it_accepts() -> None:
    with listening(ScriptedSource()) as address:
        assert scraped(address).get("term") == 7
        assert scraped(address, "/").get("term") == 7
        host = http.client.HTTPConnection(address, timeout=10)
        for accepted, kind in (
            ("application/openmetrics-text;version=1.0.0", "application/openmetrics-text"),
            ("text/plain", "text/plain"),
        ):
            host.request("GET", "/metrics?x=1", headers={"Accept": accepted})
            answer = host.getresponse()
            assert answer.status == 200
            assert str(answer.getheader("Content-Type")).startswith(kind)
            assert b"postroom_term 7.0" in answer.read()
            host.close()
        host.request("HEAD", "/metrics")
        answer = host.getresponse()
        assert (answer.status, answer.read()) == (200, b"")
        host.close()


@pytest.mark.parametrize(
    "accepted",
    [
        "application/openmetrics-text;version=x",
        "text/plain;version=x;escaping=y",
        "\xff",
        "," * 9000,
    ],
)
def test_a_scraper_that_accepts_nonsense_gets_a_format_that_there_is(accepted: str) -> None:
    with listening(ScriptedSource()) as address:
        host = http.client.HTTPConnection(address, timeout=10)
        host.request("GET", "/metrics", headers={"Accept": accepted})
        answer = host.getresponse()
        assert (answer.status, b"postroom_term 7.0" in answer.read()) == (200, True)
        host.close()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/metrics", 405), ("GET", "/../etc/passwd", 404), ("GET", "/metricsx", 404)],
)
def test_any_other_request_is_refused(method: str, path: str, status: int) -> None:
    with listening(ScriptedSource()) as address:
        host = http.client.HTTPConnection(address, timeout=10)
        host.request(method, path)
        assert host.getresponse().status == status
        host.close()


@pytest.mark.parametrize(
    "sent",
    [b"\0" * 100_000, b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 100_000],
    ids=["noise", "long"],
)
def test_a_request_that_is_too_long_ends_its_connection(sent: bytes) -> None:
    with listening(ScriptedSource()) as address, connected(address) as noisy:
        with suppress(OSError):
            noisy.sendall(sent)
            assert noisy.recv(1) == b""
        assert scraped(address).get("term") == 7


def test_a_thousand_scrapers_that_send_nothing_keep_no_other_one_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "METRICS_SECONDS_MAX", 3.0)
    with listening(ScriptedSource()) as address, ExitStack() as silent:
        scraped(address)
        for _ in range(FLOOD):
            silent.enter_context(connected(address))
        threads = threading.active_count()
        assert scraped(address).get("term") == 7
        assert threading.active_count() <= threads + 1
        assert len(open_streams()) <= limits.METRICS_CONNECTIONS_MAX + 1
        eventually(lambda: not open_streams())


def test_a_thousand_scrapers_that_never_read_grow_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoint, "METRICS_SECONDS_MAX", 1.0)
    source = ScriptedSource()
    source.queues = 5000  # the answer is larger than the buffers of the system
    with listening(source) as address, ExitStack() as mute:
        for _ in range(FLOOD):
            each = mute.enter_context(socket.socket())
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, _, port = address.rpartition(":")
            each.connect((host, int(port)))
            each.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert scraped(address).get("term") == 7
        assert source.asked < FLOOD
        assert len(open_streams()) <= limits.METRICS_CONNECTIONS_MAX + 1
        eventually(lambda: not open_streams())


def open_streams() -> list[Any]:
    """Return the connections of endpoints that have not ended."""
    found = [each for each in gc.get_objects() if type(each) is asyncio.StreamWriter]
    return [each for each in found if not each.transport.is_closing()]


def test_scrapers_that_come_together_share_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    source, collect, collections = ScriptedSource(), StoreCollector.collect, []

    def counted(collector: StoreCollector) -> Any:
        collections.append(collector)
        return collect(collector)

    monkeypatch.setattr(StoreCollector, "collect", counted)
    source.may_answer.clear()
    with listening(source) as address:
        scrapers = [threading.Thread(target=scraped, args=(address,)) for _ in range(20)]
        for each in scrapers:
            each.start()
        eventually(lambda: source.asked)
        source.may_answer.set()
        for each in scrapers:
            each.join()
        assert source.asked <= 2
        assert len(collections) <= 3


def test_a_node_that_hangs_is_told_within_two_seconds() -> None:
    source = ScriptedSource()
    with listening(source) as address:
        assert scraped(address).get("up") == 1
        source.may_answer.clear()
        told = eventually(lambda: down(address))
        for _ in range(3):
            begun = time.monotonic()
            told = scraped(address)
            assert time.monotonic() - begun < ANSWER_SECONDS
        assert told.get("up") == 0
        assert told.get("term") == 7
        assert (told.get("sample_age_seconds") or 0) > 1
        assert source.asked == 2
        source.may_answer.set()
        eventually(lambda: scraped(address).get("up") == 1)


def down(address: str) -> Scraped | None:
    told = scraped(address)
    return told if told.get("up") == 0 else None


def test_a_node_that_never_answered_tells_of_its_process_only() -> None:
    source = ScriptedSource()
    source.may_answer.clear()
    with listening(source) as address:
        told = scraped(address)
        assert told.get("up") == 0
        assert told.get("term") is None
        assert (told.get("descriptors") or 0) > 0


def test_an_error_of_reading_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sampling, "KEPT_SECONDS", 0.0)

    class Broken(ScriptedSource):
        def points(self) -> list[Point]:
            raise ZeroDivisionError("a test")

    with listening(Broken()) as address:
        for _ in range(3):
            assert scraped(address).get("up") == 0
    assert [each.message for each in caplog.records if "no metrics" in each.message] == [
        "no metrics can be read: ZeroDivisionError('a test')"
    ]


def test_an_address_that_is_taken_is_refused() -> None:
    with listening(ScriptedSource()) as address, pytest.raises(Invalid, match="cannot listen"):
        asyncio.run(Endpoint(address, StoreCollector(ScriptedSource())).start())


def test_an_endpoint_that_has_stopped_listens_no_more() -> None:
    with listening(ScriptedSource()) as address, connected(address) as idle:
        assert scraped(address).get("term") == 7
        threads = {each.name for each in threading.enumerate()}
    assert "postroom scrapes" in threads
    assert "postroom scrapes" not in {each.name for each in threading.enumerate()}
    assert idle is not None
    with pytest.raises(urllib.error.URLError):
        text_at(address)
