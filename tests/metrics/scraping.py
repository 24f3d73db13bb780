"""Scrapes of metrics, and what they tell."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

import postroom
import postroom.aio
import postroom.metrics

ANSWER_SECONDS = 10.0
"""The time for an answer on a busy machine; on an idle one it is two seconds."""


class Scraped:
    """The values of one scrape."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._values = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }

    def get(self, name: str, **labels: str) -> float | None:
        """Return a value; ``None``: there is none."""
        return self._values.get((f"postroom_{name}", tuple(sorted(labels.items()))))

    def names(self) -> set[str]:
        """Return the names of all series."""
        return {name for name, _ in self._values}

    def labels(self, name: str, label: str) -> set[str]:
        """Return the values of a label of a metric."""
        found = (dict(labels) for each, labels in self._values if each == f"postroom_{name}")
        return {each[label] for each in found}


def scraped(address: str, path: str = "/metrics") -> Scraped:
    """Return what the endpoint at an address tells."""
    return read(text_at(address, path))


def text_at(address: str, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=ANSWER_SECONDS) as answer:
        return str(answer.read().decode())


def read(text: str) -> Scraped:
    return Scraped(text_string_to_metric_families(text))


def collected(db: postroom.Database | postroom.aio.Database) -> Scraped:
    """Return what a new collector of an embedded store tells."""
    return Scraped(postroom.metrics.collector(db).collect())


def exposed(db: postroom.Database) -> str:
    """Return the text of a registry in which the store is registered."""
    registry = CollectorRegistry()
    registry.register(postroom.metrics.collector(db))
    return generate_latest(registry).decode()
