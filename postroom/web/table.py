"""The table of the pages: paths, contents, templates, parameters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from postroom.web.reading import PageReader, access, cluster, keys, mail, overview, queues, traces


@dataclass(frozen=True)
class WebPage:
    """A page, and the JSON of the same path under ``/api``.

    Attributes:
        path: its path.
        title: its title; empty: it has no page of its own, only JSON.
        read: returns its contents.
        parameters: the names in its address, with what they mean.
        is_linked: whether the head of each page links to it.
        verb: the right that it needs as a whole; empty: each call of the store is checked.
    """

    path: str
    title: str
    read: Callable[[PageReader], Awaitable[dict[str, Any]]]
    parameters: dict[str, str]
    is_linked: bool = False
    verb: str = ""

    @property
    def template(self) -> str:
        """Return the name of its template."""
        return f"{self.path.strip('/').replace('-', '_') or 'overview'}.html"


_LIMIT: Final = {"limit": "the most rows"}
_KEY: Final = {"key": "the key, as text", "key_hex": "the key, in hexadecimal"}
_PREFIX: Final = {
    "prefix": "the keys that begin so, as text", "prefix_hex": "the same in hexadecimal"
}  # fmt: skip
_SPAN: Final = _PREFIX | {"after_hex": "the rows after this key, in hexadecimal"}
_FROM: Final = {"from_hex": "the rows from this key on, in hexadecimal"}
_QUEUE: Final = {"queue": "the name of a queue"}
_AFTER: Final = {"after": "the queues after this name"}
_AT: Final = {"at": "the timestamp to read at, as a number"}

PAGES: Final = (
    WebPage("/", "Overview", overview.overview, {}, is_linked=True),
    WebPage("/inboxes", "Inboxes", mail.inboxes, _SPAN | _LIMIT, is_linked=True),
    WebPage("/inbox", "Inbox", mail.inbox, _KEY | _LIMIT),
    WebPage("/queues", "Queues", queues.queues, _AFTER, is_linked=True),
    WebPage(
        "/queue", "Queue", queues.queue, _QUEUE | {"state": "the state of the messages"} | _LIMIT
    ),
    WebPage(
        "/message",
        "Message",
        queues.message,
        _QUEUE | {"id": "the id, as text", "id_hex": "the id, in hexadecimal", "kind": "its kind"},
    ),
    WebPage(
        "/trace",
        "Time line",
        traces.trace,
        _KEY | {"id": "the id of a message, of something scheduled, or of a dead letter"},
    ),
    WebPage("/workers", "Workers", queues.workers, _AFTER, is_linked=True),
    WebPage(
        "/dead-letters",
        "Dead letters",
        mail.dead_letters,
        {"filter": "a part of the reason or the key"},
        is_linked=True,
    ),
    WebPage("/scheduled", "Scheduled", mail.scheduled, _LIMIT, is_linked=True),
    WebPage("/keys", "Keys", keys.keys, _PREFIX | _FROM | _AT | _LIMIT, is_linked=True),
    WebPage("/key", "Key", keys.key, _KEY | _AT),
    WebPage(
        "/cluster",
        "Cluster",
        cluster.cluster,
        {"after_hex": "the ranges from this key on, in hexadecimal"},
        is_linked=True,
    ),
    WebPage(
        "/chart",
        "",
        overview.chart,
        {"queue": "the name of a queue; none: the store's numbers"},
        verb="read",
    ),
    WebPage("/access", "Access", access.access, {}, is_linked=True, verb="admin"),
)
