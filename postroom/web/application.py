"""The application: routes for pages, JSON and actions, with the checks that each request passes."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import jinja2
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import postroom
import postroom.aio
from postroom.errors import Error, Invalid
from postroom.web.actions import ACTIONS, Chosen, log
from postroom.web.asked import Asked, BadRequest
from postroom.web.guard import Guard
from postroom.web.history import History
from postroom.web.limits import BODY_BYTES_MAX, SESSION_SECONDS_MAX
from postroom.web.openapi import described
from postroom.web.reading import PageReader
from postroom.web.store import NotKnown, OpenStore
from postroom.web.table import PAGES, WebPage
from postroom.web.visitors import COOKIE, Visitor, Visitors

HERE: Final = Path(__file__).parent
Handler = Callable[[Request], Awaitable[Response]]


class Refused(Exception):
    """An answer that ends a request: its status, and why, for people."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def make(
    db: postroom.Database | postroom.aio.Database,
    *,
    wall_seconds: Callable[[], float] = time.time,  # noqa: TID251 - passed in by tests
    role_of: Callable[[str], str | None] | None,
    payloads: bool,
    hosts: Collection[str],
) -> Starlette:
    """Return the application; see :func:`postroom.web.app`."""
    pages = PageHandlers(OpenStore(db), Visitors(role_of), wall_seconds, payloads=payloads)
    routes: list[Any] = [Mount("/static", StaticFiles(directory=HERE / "static"), name="static")]
    for page in PAGES:
        if page.title:
            routes.append(Route(page.path, pages.told(partial(pages.page, page))))
        path = "/api/overview" if page.path == "/" else f"/api{page.path}"
        routes.append(Route(path, pages.told(partial(pages.contents, page))))
    routes += [
        Route("/api/openapi.json", pages.told(pages.description)),
        Route("/api/actions/{name}", pages.told(pages.act), methods=["POST"]),
        Route("/actions/{name}", pages.told(pages.act), methods=["POST"]),
        Route("/login", pages.told(pages.login), methods=["GET", "POST"]),
        Route("/logout", pages.told(pages.logout), methods=["POST"]),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, hosts=hosts)])


class PageHandlers:
    """The handlers of all routes."""

    def __init__(
        self,
        store: OpenStore,
        visitors: Visitors,
        wall_seconds: Callable[[], float],
        *,
        payloads: bool,
    ) -> None:
        self._store = store
        self._visitors = visitors
        self._payloads = payloads
        self._history = History(wall_seconds)
        loader = jinja2.FileSystemLoader(HERE / "templates")
        self._templates = jinja2.Environment(
            loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )  # fmt: skip

    # --- checks and refusals

    def told(self, handler: Handler) -> Handler:
        """Return a handler that tells each refusal in the form that the request wants."""

        async def handled(request: Request) -> Response:
            try:
                return await handler(request)
            except Refused as refused:
                return self._refusal(request, refused.status, str(refused))
            except (BadRequest, Invalid) as error:
                return self._refusal(request, 400, str(error))
            except (NotKnown, Error) as error:
                return self._refusal(request, 503, str(error))

        return handled

    def _refusal(self, request: Request, status: int, reason: str) -> Response:
        if _wants_json(request):
            return JSONResponse({"error": reason}, status)
        visitor = self._visitors.of(request)
        if status == 401:
            return RedirectResponse(f"{_root(request)}/login", 303)
        return self._shown(request, visitor, "refused.html", "Not done", {"reason": reason}, status)

    def _visitor(self, request: Request, role: str = "read") -> Visitor:
        visitor = self._visitors.of(request)
        if visitor is None:
            raise Refused(401, "a token is needed; nothing was done")
        if not visitor.may(role):
            raise Refused(403, f"this needs the role {role}; nothing was done")
        return visitor

    def _reader(self, request: Request, visitor: Visitor) -> PageReader:
        shows = self._payloads or (self._visitors.log_in and visitor.may("admin"))
        return PageReader(self._store, Asked(request.query_params), self._history, shows)

    # --- looking

    async def page(self, page: WebPage, request: Request) -> Response:
        """Return a page."""
        visitor = self._visitor(request, page.role)
        found = await page.read(self._reader(request, visitor))
        return self._shown(request, visitor, page.template, page.title, found)

    async def contents(self, page: WebPage, request: Request) -> Response:
        """Return the contents of a page as JSON."""
        visitor = self._visitor(request, page.role)
        return JSONResponse(await page.read(self._reader(request, visitor)))

    async def description(self, request: Request) -> Response:
        """Return the description of the JSON."""
        self._visitor(request)
        return JSONResponse(described(postroom.__version__))

    def _shown(
        self,
        request: Request,
        visitor: Visitor | None,
        template: str,
        title: str,
        found: dict[str, Any],
        status: int = 200,
    ) -> Response:
        page = self._templates.get_template(template).render(
            found, title=title, pages=PAGES, visitor=visitor, root=_root(request),
            path=request.url.path.removeprefix(_root(request)), log_in=self._visitors.log_in,
            query=request.query_params,
        )  # fmt: skip
        return HTMLResponse(page, status)

    # --- changing

    async def act(self, request: Request) -> Response:
        """Do an action, if the visitor may."""
        visitor, name = self._visitor(request), request.path_params["name"]
        fields = await _fields(request)
        action = ACTIONS.get(name)
        if action is None:
            raise Refused(404, f"there is no action {name[:40]!r}; nothing was done")
        chosen = Chosen(fields.get("id", fields.get("ids", [])), _first(fields, "queue"))
        what = f"{name} of {len(chosen.ids)} {chosen.queue!r}"
        proof = request.headers.get("x-csrf-token") or _first(fields, "proof")
        if not self._visitors.is_proven(visitor, proof):
            log.warning("%s: %s was refused: the form is not of this session", visitor.named, what)
            raise Refused(403, "this form is not of your session; nothing was done: load the page")
        if not visitor.may(action.role):
            log.warning(
                "%s: %s was refused: it needs the role %s", visitor.named, what, action.role
            )
            raise Refused(403, f"this needs the role {action.role}; nothing was done")
        chosen.check(action)
        try:
            number = await self._store.act(lambda db: action.act(db, chosen))
        except (BadRequest, NotKnown, Error, ValueError) as error:
            log.warning("%s: %s has failed: %s", visitor.named, what, error)
            raise BadRequest(str(error)) if isinstance(error, ValueError) else error from None
        log.info("%s: %s was done: %d", visitor.named, what, number)
        done = action.done.format(number)
        if _wants_json(request):
            return JSONResponse({"done": done, "number": number})
        return self._shown(request, visitor, "done.html", "Done", {"done": done})

    # --- sessions

    async def login(self, request: Request) -> Response:
        """Return the form for a token, or begin a session."""
        if not self._visitors.log_in:
            return RedirectResponse(f"{_root(request)}/", 303)
        if request.method == "GET":
            return self._shown(request, None, "login.html", "Log in", {"refused": False})
        name = self._visitors.begin(_first(await _fields(request), "token"))
        if name is None:
            client = request.client.host if request.client else "unknown"
            log.warning("%s: a token was refused", client)
            return self._shown(request, None, "login.html", "Log in", {"refused": True}, 403)
        response = RedirectResponse(f"{_root(request)}/", 303)
        response.set_cookie(
            COOKIE, name, max_age=int(SESSION_SECONDS_MAX), path=_root(request) or "/",
            httponly=True, samesite="strict", secure=request.url.scheme == "https",
        )  # fmt: skip
        return response

    async def logout(self, request: Request) -> Response:
        """End the session."""
        visitor = self._visitor(request)
        if self._visitors.is_proven(visitor, _first(await _fields(request), "proof")):
            self._visitors.end(request)
        return RedirectResponse(f"{_root(request)}/", 303)


def _root(request: Request) -> str:
    """Return the path at which the application is mounted."""
    root: str = request.scope.get("root_path", "")
    return root.rstrip("/")


def _wants_json(request: Request) -> bool:
    return request.url.path.startswith(f"{_root(request)}/api/")


async def _fields(request: Request) -> dict[str, list[str]]:
    """Return the fields of a form or of JSON: each has a list of texts.

    Raises:
        Refused: it is too large, or malformed; nothing was done.
    """
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise Refused(413, f"a form has {BODY_BYTES_MAX} bytes at most; nothing was done")
    try:
        if request.headers.get("content-type", "").startswith("application/json"):
            return _of_json(json.loads(body))
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=2000)
    except (ValueError, RecursionError):
        raise Refused(400, "the form cannot be read; nothing was done") from None


def _of_json(found: Any) -> dict[str, list[str]]:
    if not isinstance(found, dict):
        raise ValueError("no object")
    lists = {name: each if isinstance(each, list) else [each] for name, each in found.items()}
    if not all(isinstance(each, str) for values in lists.values() for each in values):
        raise ValueError("no texts")
    return lists


def _first(fields: dict[str, list[str]], name: str) -> str:
    return (fields.get(name) or [""])[0]
