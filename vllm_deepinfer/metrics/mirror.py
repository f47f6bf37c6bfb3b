"""Counters of an engine core in ``/metrics`` of several API servers.

With more than one server, which is vLLM's default for data parallelism, Prometheus collects from
files that each server's metrics write, and asks no collector. So each server mirrors what it reads
of an engine whenever it hears from it, and of all mirrors the largest value is shown. That is exact
for what only rises.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Gauge

from vllm_deepinfer.metrics.catalogue import Family, counter
from vllm_deepinfer.metrics.shared_counters import SharedCounters


class Mirror:
    """What one server shows of one engine."""

    def __init__(self, families: Iterable[Family], engine: str) -> None:
        self._shown = [
            (counter(family.name, value), gauge)
            for family in families
            for value, gauge in _gauges(family, engine)
        ]

    def update(self, counters: SharedCounters) -> None:
        for name, gauge in self._shown:
            gauge.set(counters[name])


def _gauges(family: Family, engine: str) -> Iterable[tuple[str, Gauge]]:
    name = f"vllm_deepinfer_{family.name}{'_total' if family.is_total else ''}"
    labels = ["engine", family.label] if family.label else ["engine"]
    # In no registry: several engines have a gauge of this name each, and files take both.
    gauge = Gauge(name, family.help, labels, registry=None, multiprocess_mode="max")
    for value in family.values:
        yield value, gauge.labels(*([engine, value] if family.label else [engine]))
