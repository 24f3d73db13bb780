"""The rules of a node's services at the end of every run: none has failed, none stands still."""

from __future__ import annotations

from typing import Final

from postroom.ranges.nodes import NodeStatus
from tests.sim import checkers

SERVICES: Final = (
    "dispatcher", "executor", "outgoing", "attempts", "slots", "queues", "collector", "feed",
    "membership", "split", "transactions", "split by size", "protections", "dropped queues",
    "shares of slots",
)  # fmt: skip
"""The names of the services of the first range, in the order in which a node tells them."""
OF_ROOT: Final = frozenset({"protections", "dropped queues", "shares of slots"})
"""The services that run only where the first range is served."""


def check_services(status: NodeStatus) -> None:
    """Check that all services of a leaseholder are alive."""
    for service in status.services:
        runs = service.running or (service.name in OF_ROOT and not status.serves)
        healthy = runs and not service.failures
        checkers.require(healthy, f"the {service.name} is not well: {service}")
    if status.serves:
        names = tuple(service.name for service in status.services)
        checkers.require(names == SERVICES, f"there are other services: {names}")
