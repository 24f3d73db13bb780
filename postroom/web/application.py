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
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import postroom
import postroom.aio
from postroom.errors import AccessDenied, Error, Invalid
from postroom.web.actions import ACTIONS, Action, Chosen
from postroom.web.asked import Asked, BadRequest
from postroom.web.audit import AuditLog
from postroom.web.guard import Guard
from postroom.web.history import History
from postroom.web.limits import BODY_BYTES_MAX, SESSION_SECONDS_MAX
from postroom.web.openapi import described
from postroom.web.reading import PageReader
from postroom.web.rights import KnownRights
from postroom.web.store import NotKnown, OpenStore
from postroom.web.table import PAGES, WebPage
from postroom.web.texts import name_of
from postroom.web.visitors import COOKIE, ClientOf, Visitor, Visitors, host_of_client

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
    client_of: ClientOf | None,
    payloads: bool,
    hosts: Collection[str],
) -> Starlette:
    """Return the application; see :func:`postroom.web.app`."""
    pages = PageHandlers(OpenStore(db), Visitors(client_of), wall_seconds, payloads=payloads)
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
        self._rights = KnownRights(store)
        self._audit = AuditLog(store)
        self._payloads = payloads
        self._history = History(wall_seconds)
        loader = jinja2.FileSystemLoader(HERE / "templates")
        self._templates = jinja2.Environment(
            loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
        )  # fmt: skip
        self._templates.globals["name_of"] = name_of

    # --- checks and refusals

    def told(self, handler: Handler) -> Handler:
        """Return a handler that tells each refusal in the form that the request wants."""

        async def handled(request: Request) -> Response:
            try:
                response = await handler(request)
            except Refused as refused:
                response = self._refusal(request, refused.status, str(refused))
            except (BadRequest, Invalid) as error:
                response = self._refusal(request, 400, str(error))
            except AccessDenied as error:
                response = self._refusal(request, 403, str(error))
            except (NotKnown, Error) as error:
                response = self._refusal(request, 503, str(error))
            if self._audit.is_due():
                response.background = BackgroundTask(self._audit.tell)  # the visitor does not wait
            return response

        return handled

    def _refusal(self, request: Request, status: int, reason: str) -> Response:
        if _wants_json(request):
            return JSONResponse({"error": reason}, status)
        if status == 401:
            return RedirectResponse(f"{_root(request)}/login", 303)
        visitor = getattr(request.state, "visitor", None)
        return self._shown(request, visitor, "refused.html", "Not done", {"reason": reason}, status)

    async def _visitor(self, request: Request) -> Visitor:
        """Return the visitor of a request, with its rights."""
        visitor = self._visitors.of(request)
        if visitor is None:
            raise Refused(401, "a token is needed; nothing was done")
        if self._visitors.log_in:
            visitor = await self._rights.given(visitor)
        request.state.visitor = visitor
        return visitor

    async def _read(self, page: WebPage, request: Request) -> tuple[Visitor, dict[str, Any]]:
        """Return the visitor of a page, and the contents that it may see."""
        visitor = await self._visitor(request)
        try:
            return visitor, await self._contents(page, visitor, Asked(request.query_params))
        except (Refused, AccessDenied) as error:
            self._audit.not_done(visitor.named, "refused", f"a look at {page.path}", error)
            raise error from None

    async def _contents(self, page: WebPage, visitor: Visitor, asked: Asked) -> dict[str, Any]:
        queue = asked.text("queue") if "queue" in page.parameters else ""
        if page.verb and not visitor.may(page.verb, queue):
            raise Refused(
                403, f"your token lacks the right {page.verb!r} to this; nothing was done"
            )
        shows = self._payloads or (self._visitors.log_in and visitor.may("admin"))
        store = self._store.as_client(visitor.rights)
        return await page.read(PageReader(store, asked, self._history, shows))

    # --- looking

    async def page(self, page: WebPage, request: Request) -> Response:
        """Return a page."""
        visitor, found = await self._read(page, request)
        return self._shown(request, visitor, page.template, page.title, found)

    async def contents(self, page: WebPage, request: Request) -> Response:
        """Return the contents of a page as JSON."""
        _, found = await self._read(page, request)
        return JSONResponse(found)

    async def description(self, request: Request) -> Response:
        """Return the description of the JSON."""
        await self._visitor(request)
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
        visitor, name = await self._visitor(request), request.path_params["name"]
        fields = await _fields(request)
        action = ACTIONS.get(name)
        if action is None:
            raise Refused(404, f"there is no action {name[:40]!r}; nothing was done")
        chosen = Chosen(fields.get("id", fields.get("ids", [])), _first(fields, "queue"))
        proof = request.headers.get("x-csrf-token") or _first(fields, "proof")
        what = chosen.told(name)
        try:
            self._check_proof(visitor, proof)
            number = await self._done(visitor, action, chosen)
        except (Refused, AccessDenied) as error:
            self._audit.not_done(visitor.named, "refused", what, error)
            raise error from None
        except (BadRequest, NotKnown, Error) as error:
            self._audit.not_done(visitor.named, "failed", what, error)
            raise error from None
        untold = await self._audit.done(visitor.named, f"{number} by {what}")
        done = action.done.format(number)
        if untold:
            done += f" The audit log was not told: {untold}"
        if _wants_json(request):
            return JSONResponse({"done": done, "number": number})
        return self._shown(request, visitor, "done.html", "Done", {"done": done})

    def _check_proof(self, visitor: Visitor, proof: str) -> None:
        if not self._visitors.is_proven(visitor, proof):
            raise Refused(403, "this form is not of your session; nothing was done: load the page")

    async def _done(self, visitor: Visitor, action: Action, chosen: Chosen) -> int:
        """Do an action; return how many messages it concerned."""
        chosen.check(action)
        store = self._store.as_client(visitor.rights)
        try:
            return await store.act(lambda db: action.act(db, chosen))
        except ValueError as error:
            raise BadRequest(str(error)) from None

    # --- sessions

    async def login(self, request: Request) -> Response:
        """Return the form for a token, or begin a session."""
        if not self._visitors.log_in:
            return RedirectResponse(f"{_root(request)}/", 303)
        if request.method == "GET":
            return self._shown(request, None, "login.html", "Log in", {"refused": False})
        name = self._visitors.begin(_first(await _fields(request), "token"))
        if name is None:
            why = Refused(403, "a token was refused")
            self._audit.not_done(host_of_client(request), "refused", "a login", why)
            return self._shown(request, None, "login.html", "Log in", {"refused": True}, 403)
        response = RedirectResponse(f"{_root(request)}/", 303)
        response.set_cookie(
            COOKIE, name, max_age=int(SESSION_SECONDS_MAX), path=_root(request) or "/",
            httponly=True, samesite="strict", secure=request.url.scheme == "https",
        )  # fmt: skip
        return response

    async def logout(self, request: Request) -> Response:
        """End the session."""
        visitor = await self._visitor(request)
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
