"""The description of the JSON under ``/api``, in OpenAPI 3.1, made from the tables."""

from __future__ import annotations

from typing import Any

from postroom.web.actions import ACTIONS, Action
from postroom.web.limits import CHOSEN_MAX
from postroom.web.table import PAGES, WebPage

_TEXT = {"type": "string"}
_OBJECT = {"content": {"application/json": {"schema": {"type": "object"}}}}
_ERROR = {
    "content": {
        "application/json": {
            "schema": {"type": "object", "properties": {"error": _TEXT}, "required": ["error"]}
        }
    }
}


def described(version: str) -> dict[str, Any]:
    """Return the description.

    Args:
        version: the version of Postroom.
    """
    paths: dict[str, Any] = {f"/api{_path(page)}": {"get": _of_page(page)} for page in PAGES}
    for name, action in ACTIONS.items():
        paths[f"/api/actions/{name}"] = {"post": _of_action(name, action)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Postroom", "version": version},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def _path(page: WebPage) -> str:
    return "/overview" if page.path == "/" else page.path


def _of_page(page: WebPage) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "query", "required": False, "description": meaning, "schema": _TEXT}
        for name, meaning in page.parameters.items()
    ]
    return {
        "operationId": _path(page).strip("/").replace("-", "_"),
        "summary": page.title or "Points of a chart",
        "parameters": parameters,
        "responses": {
            "200": {"description": "the contents of the page", **_OBJECT},
            "400": {"description": "a parameter is wrong", **_ERROR},
            "401": {"description": "a token is missing, or not known", **_ERROR},
            "503": {"description": "the store does not answer", **_ERROR},
        },
    }


def _of_action(name: str, action: Action) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "ids": {"type": "array", "items": _TEXT, "maxItems": CHOSEN_MAX},
        "queue": _TEXT,
    }
    needed = ["ids"] * action.of_messages + ["queue"] * action.of_queue
    schema = {
        "type": "object",
        "properties": {each: fields[each] for each in needed},
        "required": needed,
    }
    return {
        "operationId": name.replace("-", "_"),
        "summary": action.done.format("Chosen").rstrip("."),
        "parameters": [
            {
                "name": "X-CSRF-Token",
                "in": "header",
                "required": False,
                "description": "the proof of a session; programs that send a token need none",
                "schema": _TEXT,
            }
        ],
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            "200": {"description": "it was done", **_OBJECT},
            "400": {"description": "nothing was done: the request is wrong", **_ERROR},
            "401": {"description": "nothing was done: a token is missing", **_ERROR},
            "403": {"description": "nothing was done: a right is missing", **_ERROR},
            "503": {"description": "the store does not answer", **_ERROR},
        },
    }
