"""The description of the JSON names each route, and each route that it names is there."""

from __future__ import annotations

from starlette.routing import Route

from postroom.web.actions import ACTIONS
from postroom.web.table import PAGES
from tests.web.visits import Visit


def test_the_description_names_each_route_of_the_json(visit: Visit) -> None:
    described = visit.contents("/openapi.json")
    assert described["openapi"] == "3.1.0"
    served = {
        each.path
        for each in visit.app.routes
        if isinstance(each, Route) and each.path.startswith("/api/")
    }
    served -= {"/api/openapi.json", "/api/actions/{name}"}
    served |= {f"/api/actions/{name}" for name in ACTIONS}
    assert set(described["paths"]) == served


def test_each_described_parameter_is_taken(visit: Visit) -> None:
    for page in PAGES:
        for name in page.parameters:
            assert name in {
                "prefix", "prefix_hex", "after", "after_hex", "from_hex", "limit", "key", "key_hex",
                "queue", "state", "id", "id_hex", "kind", "filter", "at",
            }  # fmt: skip
    described = visit.contents("/openapi.json")["paths"]
    names = {each["name"] for each in described["/api/key"]["get"]["parameters"]}
    assert names == {"key", "key_hex", "at"}


def test_operations_have_unique_names(visit: Visit) -> None:
    paths = visit.contents("/openapi.json")["paths"]
    names = [method["operationId"] for methods in paths.values() for method in methods.values()]
    assert len(names) == len(set(names))
