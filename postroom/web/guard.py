"""The middleware before all pages: it refuses foreign hosts, and tells browsers to be strict."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY: Final = "; ".join([
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:",
    "connect-src 'self'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
])  # fmt: skip
"""No script and no style but those of the files in ``static``: an injected one does not run."""

_HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """The outermost application: it looks at the host, and adds the headers.

    Args:
        app: the application behind it.
        hosts: the names, without ports, by which it may be reached; empty: any.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str]) -> None:
        self._app = app
        self._hosts = frozenset(each.lower() for each in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_static = scope["path"].startswith(f"{scope.get('root_path', '')}/static/")

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers["cache-control"] = "max-age=3600" if is_static else "no-store"
            await send(message)

        if not self._hosts or host_of(Headers(scope=scope).get("host", "")) in self._hosts:
            await self._app(scope, receive, with_headers)
            return
        refusal = PlainTextResponse(
            "These pages are not served under this host name; nothing was done. Use the address "
            "that 'postroom web' has told, or name this host with --host.\n",
            status_code=421,
        )
        await refusal(scope, receive, with_headers)


def host_of(header: str) -> str:
    """Return the name in a ``Host`` header, without its port."""
    name = header.lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0]
