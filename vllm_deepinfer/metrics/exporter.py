"""Shows the engine core's counters in ``/metrics`` of the API server."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from vllm.v1.metrics.loggers import StatLoggerBase

from vllm_deepinfer.metrics.catalogue import Family, counter, families
from vllm_deepinfer.metrics.mirror import Mirror
from vllm_deepinfer.metrics.shared_counters import (
    SharedCounters,
    counter_file,
    several_servers_folder,
)

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class CounterExporter(StatLoggerBase):
    """A stat logger that logs nothing: it hands the counters to Prometheus when asked.

    vLLM makes one per engine for every model; it stays idle unless this package's scheduler keeps
    counters.
    """

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self._families = families(vllm_config)
        self._mirror: Mirror | None = None
        if not self._families:
            return
        self._engine = str(engine_index)
        self._path = counter_file(vllm_config.instance_id, engine_index)
        self._counters: SharedCounters | None = None
        if several_servers_folder() is not None:
            self._mirror = Mirror(self._families, self._engine)
        else:
            prometheus_client.REGISTRY.register(self)
        # The engine core removes its file too, unless it is killed.
        atexit.register(self._path.unlink, missing_ok=True)

    def collect(self) -> Iterator[Metric]:
        """Called by Prometheus' registry for each scrape."""
        counters = self._opened()
        if counters is not None:
            for family in self._families:
                yield self._metric(family, counters)

    def _opened(self) -> SharedCounters | None:
        """The engine core's counters; None while it is still starting."""
        if self._counters is None and self._path.exists():
            names = [name for family in self._families for name in family.counters()]
            self._counters = SharedCounters(self._path, names, create=False)
        return self._counters

    def _metric(self, family: Family, counters: SharedCounters) -> Metric:
        kind = CounterMetricFamily if family.is_total else GaugeMetricFamily
        labels = ["engine", family.label] if family.label else ["engine"]
        metric = kind(f"vllm_deepinfer_{family.name}", family.help, labels=labels)
        for value in family.values:
            shown = [self._engine, value] if family.label else [self._engine]
            metric.add_metric(shown, counters[counter(family.name, value)])
        return metric

    def describe(self) -> list[Metric]:
        """Nothing to describe before the first scrape."""
        return []

    def record(self, *args: Any, **kwargs: Any) -> None:
        """Called when the engine was heard from. vLLM's own statistics are logged by vLLM."""
        if self._mirror is not None and (counters := self._opened()) is not None:
            self._mirror.update(counters)

    def log_engine_initialized(self) -> None:
        """Nothing to say."""
