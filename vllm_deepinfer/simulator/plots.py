"""Figures of runs as pictures. Needs matplotlib, which only this module imports."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_deepinfer.simulator.errors import SimulationError
from vllm_deepinfer.simulator.measures import QUANTILES, Measures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BIN_MS = 1000.0
_WIDTH, _ROW_HEIGHT = 11.0, 3.2
Sweep = Sequence[tuple[Any, Mapping[str, Any]]]


def new_figure(rows: int, columns: int) -> tuple[Figure, np.ndarray]:
    """An empty figure and its axes [rows, columns], which need no display.

    Raises:
        SimulationError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise SimulationError(
            f"plots need matplotlib ({error}); install it with pip install 'vllm-deepinfer[plot]'."
        ) from error
    figure = Figure(figsize=(_WIDTH, _ROW_HEIGHT * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def png(figure: Figure) -> bytes:
    """The figure as a PNG file's bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=80, metadata={"Software": None})
    return buffer.getvalue()


def run_plot(measures: Measures, title: str) -> Figure:
    """One run: tokens and verified drafts in time, latencies and waits as distributions."""
    figure, ((rate, latency), (verified, wait)) = new_figure(2, 2)
    figure.suptitle(title)
    _plot_rate(rate, measures)
    gaps, counts = measures.itl_ms
    _plot_distribution(latency, "time between deliveries", gaps, counts)
    _plot_distribution(latency, "time to first token", measures.ttft_ms)
    _label(latency, "ms", "share of deliveries or requests", is_log=True)
    latency.legend()
    seconds = np.array(measures.end_ms) / 1e3
    verified.plot(seconds, measures.verified_per_request, ".", markersize=2)
    _label(verified, "s", "drafts verified per request")
    wait.hist(measures.wait_steps, bins=30)
    _label(wait, "decode steps from arrival to first token", "requests")
    return figure


def _plot_rate(axes: Axes, measures: Measures) -> None:
    ends = np.array(measures.end_ms)
    bins = np.arange(0.0, ends[-1] + _BIN_MS, _BIN_MS)
    tokens, _ = np.histogram(ends, bins, weights=measures.tokens)
    axes.step(bins[:-1] / 1e3, tokens * 1e3 / _BIN_MS, where="post")
    _label(axes, "s", "output tokens/s")


def _plot_distribution(
    axes: Axes, label: str, values: np.ndarray, counts: np.ndarray | None = None
) -> None:
    if not values.size:
        return
    order = np.argsort(values)
    reached = np.cumsum(np.ones(len(values)) if counts is None else counts[order])
    axes.step(values[order], reached / reached[-1], where="post", label=label)


def sweep_plot(name: str, sweep: Sweep, title: str) -> Figure:
    """Runs that differ in one option: throughput against speed, and latencies by its value."""
    figure, ((trade, ttft), (itl, verified)) = new_figure(2, 2)
    figure.suptitle(title)
    speeds = [summary["tokens_per_s_per_user"] or np.nan for _, summary in sweep]
    rates = [summary["output_tokens_per_s"] or np.nan for _, summary in sweep]
    trade.plot(speeds, rates, "o-")
    for (value, _), speed, rate in zip(sweep, speeds, rates, strict=True):
        trade.annotate(f" {value}", (speed, rate))
    _label(trade, "tokens/s per user", "output tokens/s")
    trade.set_ylim(0, 1.15 * np.nanmax([1.0, *rates]))
    plot_quantiles(ttft, name, sweep, "ttft_ms", "time to first token, ms")
    plot_quantiles(itl, name, sweep, "itl_ms", "time between deliveries, ms")
    plot_figure(verified, name, sweep, ("drafting", "verified_per_block"), "drafts verified")
    plot_figure(verified, name, sweep, ("wait_decode_steps", "p99"), "decode steps waited, p99")
    verified.legend()
    return figure


def plot_quantiles(axes: Axes, name: str, sweep: Sweep, figure: str, label: str) -> None:
    """Quantiles of one figure by the value of the swept option."""
    for quantile in QUANTILES:
        plot_figure(axes, name, sweep, (figure, quantile), quantile)
    axes.set_ylabel(label)
    axes.set_yscale("log")
    axes.legend()


def plot_figure(axes: Axes, name: str, sweep: Sweep, path: tuple[str, str], label: str) -> None:
    """One figure by the value of the swept option, values at equal distances."""
    values = [summary[path[0]][path[1]] for _, summary in sweep]
    heights = [np.nan if value is None else value for value in values]
    axes.plot(range(len(sweep)), heights, "o-", label=label)
    axes.set_xticks(range(len(sweep)), [str(value) for value, _ in sweep])
    _label(axes, name, "")


def _label(axes: Axes, x: str, y: str, is_log: bool = False) -> None:
    axes.set_xlabel(x)
    if y:
        axes.set_ylabel(y)
    if is_log:
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
