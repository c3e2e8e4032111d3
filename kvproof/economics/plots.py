"""Plots of plans, by matplotlib (extra `plots`): PNG or SVG by the name of the file, or SVG as text for a page."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvproof.economics.plans import Plan
from kvproof.errors import NotInstalled, UsageError
from kvproof.models.queueing import Engine, simulate

_KINDS = (".png", ".svg")
_INK, _SECOND, _THIRD, _QUIET = "#1b5e88", "#c2571a", "#4d7c36", "#8a8a8a"


def check(path: Path) -> None:
    """Raise UsageError for a file that is no plot's by its name, and NotInstalled where matplotlib is not."""
    if path.suffix not in _KINDS:
        raise UsageError(f"--plot {path}: expected a name that ends in {' or '.join(_KINDS)}")
    _figure()


def _figure(width: float = 7.0, height: float = 4.2) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise NotInstalled("plots need matplotlib: pip install 'kvproof[plots]'") from None
    return Figure(figsize=(width, height), layout="constrained")


def write(figure: Any, path: Path) -> None:
    """Write a figure; raises UsageError where that cannot be done."""
    try:
        _save(figure, path, path.suffix[1:])
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; name another file") from error


def svg(figure: Any) -> str:
    """Return a figure as SVG, for a page."""
    out = io.StringIO()
    _save(figure, out, "svg")
    text = out.getvalue()
    return text[text.index("<svg"):]


def _save(figure: Any, to: Any, kind: str) -> None:
    """Save a figure; SVG with its texts as texts, the same bytes each time."""
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "kvproof", "font.family": "sans-serif"}):
        figure.savefig(to, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)


def _axes(figure: Any, title: str, x: str, y: str) -> Any:
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    return axes


def cost(plan: Plan, points: Sequence[tuple[float, Sequence[float]]] = ()) -> Any:
    """Draw load against recompute by tokens, with n*; points: what was measured, bytes and seconds."""
    data, figure = plan.data, _figure()
    size, rate, fixed, bandwidth = (data[name] for name in ("size", "rate", "fixed", "bandwidth"))
    least = data["least_tokens"]
    most = max([2.5 * least if least else 0.0, *(one["tokens"] * 1.1 for one in data["hits"]),
                *(each / size for each, _ in points), 20_000.0 if not points else 0.0])
    axes = _axes(figure, "Load or recompute a hit", "tokens served from the cache", "seconds")
    axes.plot([0, most], [0, most / rate], color=_SECOND, label=f"recompute at {rate:,.0f} tokens/s")
    axes.plot([0, most], [fixed, fixed + most * size / bandwidth], color=_INK,
              label=f"load: {fixed:.3g} s + bytes / {bandwidth / 1e9:.3g} GB/s")
    if least:
        axes.axvline(least, color=_QUIET, linestyle="--", linewidth=1)
        axes.annotate(f"n* = {least:,.0f}", (least, 0), xytext=(4, 6), textcoords="offset points", color=_QUIET)
    for each, times in points:
        axes.plot([each / size] * len(times), times, ".", color=_INK, alpha=0.35, markersize=4)
    axes.set_xlim(0, most)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="upper left")
    return figure


def tiers(plan: Plan, rate: Callable[[float], float]) -> Any:
    """Draw the hit rate against capacity, with the fit; rate: of a capacity in blocks."""
    data, figure = plan.data, _figure()
    axes = _axes(figure, "Hit rate of an LRU cache of prefix blocks", "capacity, blocks", "hit rate of blocks")
    most = max(each["blocks"] for each in data["curve"])
    steps = sorted({round(most ** (step / 300)) for step in range(301)})
    axes.plot(steps, [rate(each) for each in steps], color=_INK, label="the trace")
    axes.axhline(data["unbounded_hit_rate"], color=_QUIET, linestyle="--", linewidth=1,
                 label=f"no bounds: {data['unbounded_hit_rate']:.2%}")
    fit = data.get("fit")
    if fit:
        within = [each for each in steps if fit["least"] <= each <= fit["most"]]
        axes.plot(within, [fit["k"] * each ** fit["beta"] for each in within], color=_SECOND, linestyle=":",
                  label=f"C^{fit['beta']:.3f}, {'holds' if fit['holds'] else 'does not hold'}")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="center left")
    return figure


def routes(plan: Plan) -> Any:
    """Draw the policies beside each other: both rates, and both times."""
    policies, figure = plan.data["policies"], _figure(9.0, 3.8)
    left, right = figure.subplots(1, 2)
    names, width = [each["policy"] for each in policies], 0.38
    for axes, pairs, title in (
        (left, (("hit_rate", "prefix hit rate", _INK), ("consistency", "route consistency", _THIRD)), "Share"),
        (right, (("p50", "p50", _INK), ("p99", "p99", _SECOND)), "Time to first token, seconds"),
    ):
        for shift, (name, label, colour) in zip((-width / 2, width / 2), pairs, strict=True):
            places = [number + shift for number in range(len(policies))]
            bars = axes.bar(places, [each[name] for each in policies], width, color=colour, label=label)
            axes.bar_label(bars, fmt="%.2f", fontsize=7)
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xticks(range(len(policies)), [name.replace(" ", "\n") for name in names])
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        axes.margins(y=0.2)
    return figure


def latency(engine: Engine, of: str, arrivals: Callable[[float], Any], tokens: float, cached: float) -> Any:
    """Draw the median TTFT against the rate of requests, with the region in which there is no steady state.

    of: what run it is of, for its title. arrivals: makes requests that come so many a second. tokens: of a prompt in
    the mean; cached: of which L2 has so many.
    """
    figure = _figure()
    limit = engine.keeps_up(tokens, cached)
    rates = [limit * step / 20 for step in range(2, 31)]
    runs = [simulate(engine, arrivals(rate)) for rate in rates]
    axes = _axes(figure, f"Latency against load{of}", "requests a second", "seconds to the first token")
    axes.plot(rates, [run.percentile(0.5) for run in runs], color=_INK, label="median")
    axes.plot(rates, [run.percentile(0.99) for run in runs], color=_SECOND, label="p99")
    axes.axvspan(limit, rates[-1], color="#f3d9cb", zorder=0, label="more than it keeps up with")
    axes.set_yscale("log")
    axes.set_xlim(rates[0], rates[-1])
    axes.legend(frameon=False, loc="upper left")
    return figure
