"""The rules of a node's services at the end of every run: none has failed, none stands still."""

from __future__ import annotations

from postroom.ranges.nodes import NodeStatus
from tests.sim import checkers


def check_services(status: NodeStatus) -> None:
    """Check that all services of a leaseholder are alive."""
    for service in status.services:
        healthy = service.running and not service.failures
        checkers.require(healthy, f"the {service.name} is not well: {service}")
    if status.serves:
        checkers.require(len(status.services) == 9, f"there are other services: {status.services}")
