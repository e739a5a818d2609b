"""The timeline as a picture: a lane for each rank and stream, compute and communication apart, their overlap marked.

Drawn with matplotlib's objects alone, never pyplot, so nothing is shared between drawings. The colours are Okabe and
Ito's, which colour-blind people tell apart. Times in the picture are ms from the earliest start.
"""

from __future__ import annotations

import math
import re
import textwrap
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text

from ddpprof.errors import UsageError
from ddpprof.model import Kind, Lane, RankLanes, Timeline
from ddpprof.reports import quantities

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ddpprof.model import Ints

    Floats = NDArray[np.float64]

COLORS = {Kind.COMPUTE: "#0072B2", Kind.COMM: "#E69F00", Kind.MEMORY: "#8C8C8C", Kind.GRAPH: "#CC79A7"}
NAMES = {Kind.COMPUTE: "compute", Kind.COMM: "communication", Kind.MEMORY: "memory", Kind.GRAPH: "CUDA graph (opaque)"}
OVERLAP = "#009E73"
INK = "#1A1A1B"
"""Colour of all lines and of all text outside bars; an inline SVG has the page's text colour in its place."""

EVIDENCE = {
    "gpu-kernels": "GPU kernels: device intervals",
    "host-ranges": "Host ranges of a CPU run: says nothing about a GPU",
}
MOST_RANKS = 32
MOST_SUBROWS = 12
DPI = 110
PLOT_INCHES = 11.0
TALLEST_INCHES = 60.0
ROW_INCHES, HEAD_INCHES, FOOT_INCHES = 0.27, 0.72, 0.5
EMPTY_ROWS = 5.0
TITLE_CHARACTERS = 48
MS = 1_000_000
TEXT: dict[str, Any] = {"color": INK, "parse_math": False}
IN_BAR: dict[str, Any] = {"color": "black", "parse_math": False, "ha": "center", "va": "center_baseline"}


def draw_timeline(timeline: Timeline, path: Path) -> None:
    """Writes the picture to ``path``, PNG or SVG by its suffix; an empty timeline says so in the picture."""
    form = path.suffix.lower().removeprefix(".")
    if form not in ("png", "svg"):
        raise UsageError(f"{path}: no picture can be drawn with this suffix", "Name a .png or .svg file.")
    with matplotlib.rc_context({"svg.hashsalt": "ddpprof"}):
        figure(timeline).savefig(path, format=form, facecolor="white", metadata={"Date": None} if form == "svg" else None)


def inline_svg(timeline: Timeline) -> str:
    """The picture as an ``<svg>`` element for a page: no background, lines and text in the page's own colour."""
    out = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "ddpprof", "svg.fonttype": "none"}):
        figure(timeline).savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    svg = out.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], count=1, flags=re.DOTALL)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="Timeline: {_what(timeline)}" ', 1)
    return svg.replace(INK.lower(), "currentColor")


def figure(timeline: Timeline) -> Figure:
    """The picture, in the size that its content asks for."""
    ranks = timeline.ranks[:MOST_RANKS]
    fig = Figure(dpi=DPI)
    FigureCanvasAgg(fig)
    axes = fig.add_axes((0, 0, 1, 1))
    start, end = _extent(ranks)
    axes.set_xlim(start, end)
    ticks: dict[float, str] = {}
    y = 0.0
    for rank in ranks:
        y = _draw_rank(axes, rank, y, ticks, pixel=(end - start) / (PLOT_INCHES * DPI))
    if not ranks:
        y = EMPTY_ROWS
        axes.set_axis_off()
        text = "Nothing to draw: no rank with compute or communication was found."
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", fontsize=11, **TEXT)
    axes.set_ylim(y, 0)
    axes.set_yticks(list(ticks), list(ticks.values()), fontsize=8, **TEXT)
    _frame(axes)
    _place(fig, axes, timeline, y * min(ROW_INCHES, TALLEST_INCHES / y))
    return fig


def _extent(ranks: tuple[RankLanes, ...]) -> tuple[float, float]:
    """First and last moment in ms, with a little air."""
    lanes = [lane for rank in ranks for lane in rank.lanes if len(lane.start_ns)]
    first = min([rank.window[0] for rank in ranks] + [int(lane.start_ns.min()) for lane in lanes], default=0)
    last = max([rank.window[1] for rank in ranks] + [int(lane.end_ns.max()) for lane in lanes], default=0)
    air = max(last - first, 1) * 0.005
    return (first - air) / MS, (last + air) / MS


def _draw_rank(axes: Axes, rank: RankLanes, top: float, ticks: dict[float, str], pixel: float) -> float:
    """Draws one rank below ``top``: title, lanes, overlap, window, number; returns where the next one begins."""
    beside = axes.get_yaxis_transform()
    title = _wrapped(rank.title, 3 * TITLE_CHARACTERS)
    first = top + 0.85 + 0.5 * title.count("\n")
    axes.text(0, first - 0.12, title, transform=beside, va="bottom", fontsize=9, weight="bold", **TEXT)
    y = first
    for lane in rank.lanes:
        name = _wrapped(lane.title, TITLE_CHARACTERS)
        height = max(_draw_lane(axes, lane, y, pixel), 0.55 * (name.count("\n") + 1))
        ticks[y + height / 2] = name
        y += height
    if not rank.lanes:
        ticks[y + 0.4] = "nothing ran"
        y += 0.8
    ticks[y + 0.23] = "overlap"
    spans = _merged(rank.overlap_start_ns / MS, rank.overlap_end_ns / MS, pixel)
    axes.broken_barh(spans, (first, y - first), facecolors=OVERLAP, alpha=0.18, linewidth=0, zorder=0)
    axes.broken_barh(spans, (y + 0.06, 0.34), facecolors=OVERLAP, linewidth=0, zorder=2)
    last = y + 0.5
    begin, end = (moment / MS for moment in rank.window)
    axes.broken_barh([(begin, end - begin)], (first, last - first), facecolors=INK, alpha=0.06, linewidth=0, zorder=-1)
    number = f"{quantities.ns(rank.overlap_ns)} overlap" if rank.overlap_ns else "no overlap"
    if rank.compute_label not in ("", "compute"):
        number += f"\nwith {_wrapped(rank.compute_label, 24)}"
    axes.text(1.01, (first + last) / 2, number, transform=beside, va="center", fontsize=9, **TEXT)
    return last + 0.45


def _draw_lane(axes: Axes, lane: Lane, top: float, pixel: float) -> float:
    """Draws the bars of one lane, those that overlap each other on sub-rows; returns the height taken."""
    start, end = lane.start_ns / MS, lane.end_ns / MS
    subrow = _stacked(start, end, pixel)
    n_subrows = int(subrow.max(initial=0)) + 1
    height, gap = (0.8, 0.0) if n_subrows == 1 else (0.5, 0.06)
    for row in range(n_subrows):
        y = top + 0.1 + row * (height + gap)
        for kind in Kind:
            mine = (subrow == row) & (lane.kind == kind)
            spans = _merged(start[mine], end[mine], pixel)
            edges = [0.5 if width > 4 * pixel else 0.0 for _, width in spans]
            axes.broken_barh(spans, (y, height), facecolors=COLORS[kind], edgecolors="white", linewidth=edges, zorder=1)
        for index in np.flatnonzero((subrow == row) & (end - start > 9 * pixel)):
            label, middle = lane.label[index], (start[index] + end[index]) / 2
            if label and (end[index] - start[index]) / pixel > 2 + 7 * len(label):
                axes.text(middle, y + height / 2, label, fontsize=7, **IN_BAR)
    return 0.2 + n_subrows * (height + gap) - gap


def _stacked(start: Floats, end: Floats, pixel: float) -> Ints:
    """The sub-row of each bar so that none hides a pixel of another; beyond MOST_SUBROWS rows are shared."""
    order = np.argsort(start, kind="stable")
    rows = np.zeros(len(start), dtype=np.int64)
    if np.all(start[order][1:] + pixel > np.maximum.accumulate(end[order])[:-1]):
        return rows
    free_from: list[float] = []
    for index in order:
        free = [row for row, moment in enumerate(free_from) if moment < start[index] + pixel]
        if not free and len(free_from) < MOST_SUBROWS:
            free = [len(free_from)]
            free_from.append(-math.inf)
        row = free[0] if free else int(np.argmin(free_from))
        free_from[row] = max(free_from[row], float(end[index]))
        rows[index] = row
    return rows


def _merged(start: Floats, end: Floats, pixel: float) -> list[tuple[float, float]]:
    """(left edge, width) of what to draw: bars narrower than a pixel joined with such neighbours, none left narrower."""
    is_narrow = end - start < pixel
    order = np.argsort(start[is_narrow], kind="stable")
    left, right = start[is_narrow][order], end[is_narrow][order]
    if left.size:
        gap = left[1:] - np.maximum.accumulate(right)[:-1]
        groups = np.flatnonzero(np.concatenate(([True], gap > pixel)))
        left, right = left[groups], np.maximum.reduceat(right, groups)
    wide = ~is_narrow
    edges = [*left.tolist(), *start[wide].tolist()]
    widths = [*np.maximum(right - left, pixel).tolist(), *(end[wide] - start[wide]).tolist()]
    return list(zip(edges, widths, strict=True))


def _frame(axes: Axes) -> None:
    """As few lines as a reader needs: the time axis and a faint grid."""
    axes.set_axisbelow(True)
    axes.spines[["left", "right", "top"]].set_visible(False)
    axes.spines["bottom"].set_color(INK)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8, color=INK, labelcolor=INK)
    axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.6)
    axes.set_xlabel("ms from the earliest start", fontsize=9, color=INK)


def _place(fig: Figure, axes: Axes, timeline: Timeline, plot_inches: float) -> None:
    """Sets the size of the picture and the place of axes, heading and legend: each side as wide as its text."""
    left = 0.25 + max((_inches(label) for label in axes.get_yticklabels()), default=0)
    right = 0.3 + max((_inches(text) for text in axes.texts if text.get_position()[0] == 1.01), default=0)
    width, height = left + PLOT_INCHES + right, HEAD_INCHES + plot_inches + FOOT_INCHES
    fig.set_size_inches(width, height)
    axes.set_position((left / width, FOOT_INCHES / height, PLOT_INCHES / width, plot_inches / height))
    heading = f"{EVIDENCE[timeline.evidence]}; {_what(timeline)}"
    fig.text(0.12 / width, 1 - 0.16 / height, heading, va="top", fontsize=12, weight="bold", **TEXT)
    if not timeline.ranks:
        return
    lanes = [lane for rank in timeline.ranks[:MOST_RANKS] for lane in rank.lanes]
    keys = [Patch(color=COLORS[kind], label=NAMES[kind]) for kind in Kind if any((lane.kind == kind).any() for lane in lanes)]
    what = {rank.compute_label for rank in timeline.ranks} - {"compute"}
    both = f"overlap: communication and {what.pop()} at once" if what else "overlap: both at once"
    keys += [Patch(color=OVERLAP, label=both), Patch(color=INK, alpha=0.1, label="measured window")]
    below = (0, 1 - 0.4 / height)
    fig.legend(handles=keys, loc="upper left", bbox_to_anchor=below, ncols=6, frameon=False, fontsize=9, labelcolor=INK)


def _what(timeline: Timeline) -> str:
    step = "whole capture" if timeline.step is None else f"step {timeline.step}"
    count = len(timeline.ranks)
    some = f", the first {MOST_RANKS} shown" if count > MOST_RANKS else ""
    return f"{step}; {count} rank{'' if count == 1 else 's'}{some}"


def _inches(text: Text) -> float:
    """How wide a text is when drawn."""
    return float(text.get_window_extent().width) / DPI


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(quantities.plain(text), width)) or " "
