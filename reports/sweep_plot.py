"""A sweep as a picture: above, the step at each cap with its spread; below, communication that nothing hides, and the tail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ddpprof.model import Sweep
from ddpprof.reports.plots import DPI, EVIDENCE, INK, MS, OVERLAP, TEXT

STEP, EXPOSED, TAIL = "#0072B2", "#D55E00", "#F0E442"
BAR = 0.36


def draw(sweep: Sweep, title: str, path: Path) -> None:
    """Writes the chart as PNG. Caps stand side by side at equal distance, whatever their size; times are ms."""
    places = range(len(sweep.rows))
    fig = Figure(figsize=(max(8.5, 2 + 0.95 * len(places)), 6.2), dpi=DPI)
    FigureCanvasAgg(fig)
    above, below = fig.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    fig.subplots_adjust(left=0.11, right=0.97, top=0.81, bottom=0.12, hspace=0.12)
    _steps(above, sweep)
    _exposed(below, sweep)
    for axes in (above, below):
        _frame(axes)
    below.set_xticks(places, [_tick(row.cap_mb, row.launches) for row in sweep.rows], fontsize=9, **TEXT)
    below.set_xlabel("bucket_cap_mb (MiB)", fontsize=9, **TEXT)
    fig.text(0.02, 0.985, title, va="top", fontsize=12, weight="bold", **TEXT)
    ranks = "" if sweep.world_size is None else f"{sweep.world_size} ranks on {sweep.device}. "
    fig.text(0.02, 0.945, f"{ranks}{EVIDENCE[sweep.evidence]}.", va="top", fontsize=9, **TEXT)
    keys = [pair for axes in (above, below) for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    fig.legend(
        *zip(*keys, strict=True),
        loc="upper left",
        bbox_to_anchor=(0.01, 0.925),
        ncols=3,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
    )
    fig.savefig(path, format="png", facecolor="white")


def _steps(axes: Axes, sweep: Sweep) -> None:
    found = [(place, row.timing) for place, row in enumerate(sweep.rows) if row.timing]
    for place, row in enumerate(sweep.rows):
        if row.cap_mb in sweep.recommended_mb:
            label = "within the spread of the fastest" if row.cap_mb == sweep.recommended_mb[0] else None
            axes.axvspan(place - 0.5, place + 0.5, color=OVERLAP, alpha=0.15, linewidth=0, label=label)
        if row.failure:
            axes.text(place, 0.5, "failed", transform=axes.get_xaxis_transform(), ha="center", fontsize=9, **TEXT)
    at = [place for place, _ in found]
    median = [timing.median_ns / MS for _, timing in found]
    spread = [timing.mad_ns / MS for _, timing in found]
    if found:
        axes.errorbar(at, median, spread, fmt="o", color=STEP, capsize=6, markersize=6, label="step median, MAD")
        axes.plot(at, [timing.p95_ns / MS for _, timing in found], "_", color=STEP, markersize=12, label="step P95")
    axes.set_ylabel("step (ms)", fontsize=9, **TEXT)


def _exposed(axes: Axes, sweep: Sweep) -> None:
    exposed, tail = ([getattr(row, name) for row in sweep.rows] for name in ("exposed_comm_ns", "tail_ns"))
    _bars(axes, exposed, -BAR / 2, EXPOSED, "exposed communication, worst rank")
    _bars(axes, tail, BAR / 2, TAIL, "tail, the same rank")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("ms", fontsize=9, **TEXT)


def _bars(axes: Axes, values: Sequence[int | None], shift: float, color: str, label: str) -> None:
    known = [(place + shift, value / MS) for place, value in enumerate(values) if value is not None]
    axes.bar(
        [at for at, _ in known], [value for _, value in known], BAR, color=color, edgecolor=INK, linewidth=0.5, label=label
    )


def _tick(cap_mb: float, launches: int | None) -> str:
    return f"{cap_mb:g}" if launches is None else f"{cap_mb:g}\n{launches} launch{'' if launches == 1 else 'es'}"


def _frame(axes: Axes) -> None:
    axes.set_axisbelow(True)
    axes.spines[["right", "top"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(labelsize=8, color=INK, labelcolor=INK)
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.6)
