"""The collector of a store: its samples, as families of Prometheus."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from postroom.client.database import CoreDatabase
from postroom.client.sync import CoreDatabase as SyncDatabase
from postroom.metrics.client_figures import certificates, clients
from postroom.metrics.message_figures import due, messages, queues
from postroom.metrics.node_figures import clocks, consensus, storage, work
from postroom.metrics.sampling import Sampling, Source, readable
from postroom.metrics.table import METRICS, Counted, Metric, Point
from postroom.server.cluster.serving import ServedNode
from postroom.server.drivers import NodeDriver
from postroom.server.node import Node

_GROUPS: Final = (consensus, work, storage, clocks, messages, due, queues)
_STEP: Final = 2
"""The powers of two from one bound of a bucket to the next."""


def points_of(driver: NodeDriver) -> list[Point]:
    """Return the figures of a node, which takes turns between two groups of them."""

    def look(group: Callable[[Node], Iterable[Point]], points: list[Point]) -> None:
        driver.look(lambda node: points.extend(group(node)))

    return readable(partial(look, group) for group in _GROUPS)


class EmbeddedStore:
    """An embedded store, whose figures are read.

    Args:
        driver: the driver of its node.
    """

    def __init__(self, driver: NodeDriver) -> None:
        self._driver = driver
        self.is_here = driver.is_here

    def points(self) -> list[Point]:
        """Return its figures."""
        return points_of(self._driver)


class ServedStore:
    """A served node, whose figures are read. It may not have joined its cluster yet.

    Args:
        served: the node.
    """

    def __init__(self, served: ServedNode) -> None:
        self._served = served

    def points(self) -> list[Point]:
        """Return its figures."""
        served, driver = self._served, self._served.driver
        own = [*clients(served), *certificates(served)]
        return own if driver is None else [*own, *points_of(driver)]

    def is_here(self) -> bool:
        """Return whether the calling thread runs its event loop."""
        driver = self._served.driver
        return driver is not None and driver.is_here()


class StoreCollector(Collector):
    """A collector of the metrics of one store, to be registered with a registry of Prometheus.

    :func:`collector` makes it.
    """

    def __init__(self, source: Source) -> None:
        self._sampling = Sampling(source)

    def describe(self) -> Iterable[Family]:
        """Return the families without values: registering reads nothing."""
        return families(())

    def collect(self) -> Iterable[Family]:
        """Return the families with their values, after a second at most."""
        return families(self._sampling.newest())


def collector(db: CoreDatabase | SyncDatabase) -> StoreCollector:
    """Return a collector of the metrics of an embedded store.

    Args:
        db: the store, of :func:`postroom.open` or :func:`postroom.aio.open`.

    Raises:
        TypeError: ``db`` is no store that this process has opened. The nodes of a cluster have
            metrics of their own: ``postroom serve --metrics HOST:PORT``.

    Examples:
        >>> import prometheus_client
        >>> import postroom.metrics
        >>> registry = prometheus_client.CollectorRegistry()
        >>> registry.register(postroom.metrics.collector(db))
        >>> registry.get_sample_value("postroom_up")
        1.0
    """
    driver = getattr(db, "sender", None)
    if not isinstance(driver, NodeDriver):
        raise TypeError(
            "collector() takes a store that this process has opened; the nodes of a cluster have "
            "metrics of their own: postroom serve --metrics HOST:PORT"
        )
    return StoreCollector(EmbeddedStore(driver))


# --- families -------------------------------------------------------------------------------------


def families(points: Iterable[Point]) -> Iterator[Family]:
    """Yield the families of all metrics, in the order of the table."""
    by_name: dict[str, list[Point]] = defaultdict(list)
    for each in points:
        by_name[each.name].append(each)
    for name, metric in METRICS.items():
        family = _family(metric)
        for _, value, labels in by_name[name]:
            if isinstance(value, tuple):
                family.add_metric(labels, _buckets(metric, value), value[1] / metric.units)
            else:
                family.add_metric(labels, float(value))
        yield family


def _family(metric: Metric) -> Any:
    make = {
        "gauge": GaugeMetricFamily,
        "counter": CounterMetricFamily,
        "histogram": HistogramMetricFamily,
    }[metric.kind]
    return make(metric.name, metric.meaning, labels=metric.labels)


def _buckets(metric: Metric, counted: Counted) -> list[tuple[str, float]]:
    counts, (first, last) = counted[0], metric.digits
    bounded = [
        (str(2**digits / metric.units), float(sum(counts[: digits + 1])))
        for digits in range(first, last + 1, _STEP)
    ]
    return [*bounded, ("+Inf", float(sum(counts)))]
