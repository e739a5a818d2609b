from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddpprof.errors import UsageError
from ddpprof.model import Kind, Lane, RankLanes, Timeline
from ddpprof.reports import plots

MS = 1_000_000
Bars = list[tuple[int, int]]


def lane(title: str, bars: Bars, kind: Kind, labels: tuple[str, ...] | None = None) -> Lane:
    """Bars in ms."""
    times = np.array(bars, dtype=np.int64).reshape(-1, 2) * MS
    kinds = np.full(len(bars), kind, dtype=np.int8)
    return Lane(rank=0, title=title, start_ns=times[:, 0], end_ns=times[:, 1], kind=kinds, label=labels or ("",) * len(bars))


def rank(number: int, *lanes: Lane, overlap: tuple[tuple[int, int], ...] = (), **other: str) -> RankLanes:
    times = np.array(overlap, dtype=np.int64).reshape(-1, 2) * MS
    return RankLanes(
        rank=number,
        title=other.get("title", f"rank {number}"),
        lanes=lanes,
        overlap_start_ns=times[:, 0],
        overlap_end_ns=times[:, 1],
        window=(0, 100 * MS),
        overlap_ns=int((times[:, 1] - times[:, 0]).sum()),
        compute_label=other.get("compute", "compute"),
    )


def timeline(*ranks: RankLanes, step: int | None = 4, evidence: str = "gpu-kernels") -> Timeline:
    return Timeline(evidence=evidence, ranks=ranks, step=step)  # type: ignore[arg-type]


COMPUTE = lane("stream 7", [(0, 40), (45, 80)], Kind.COMPUTE)
COMM = lane("stream 16", [(30, 50), (85, 95)], Kind.COMM, ("0", "1"))
PAIR = rank(0, COMPUTE, COMM, overlap=((30, 40), (45, 50)))


def texts(picture: Timeline) -> list[str]:
    """All text of the picture."""
    fig = plots.figure(picture)
    axes = fig.axes[0]
    drawn = [*axes.texts, *axes.get_yticklabels(), *fig.texts, *(text for legend in fig.legends for text in legend.get_texts())]
    return [text.get_text() for text in drawn]


def test_the_picture_says_evidence_step_ranks_and_overlap() -> None:
    found = texts(timeline(PAIR, replace(PAIR, rank=1, title="rank 1")))
    assert "GPU kernels: device intervals; step 4; 2 ranks" in found
    assert found.count("15.000 ms overlap") == 2
    assert {"rank 0", "rank 1", "stream 7", "stream 16", "0", "1", "compute", "communication"} <= set(found)
    assert "memory" not in found


def test_a_cpu_run_says_that_it_is_one() -> None:
    found = texts(timeline(PAIR, step=None, evidence="host-ranges"))
    assert "Host ranges of a CPU run: says nothing about a GPU; whole capture; 1 rank" in found


def test_a_pattern_is_named_beside_its_number() -> None:
    assert "15.000 ms overlap\nwith spin_kernel" in texts(timeline(replace(PAIR, compute_label="spin_kernel")))
    assert "no overlap" in texts(timeline(rank(0, COMPUTE)))


def test_an_empty_timeline_says_so() -> None:
    assert "Nothing to draw: no rank with compute or communication was found." in texts(timeline())
    assert "nothing ran" in texts(timeline(rank(0)))
    assert "stream 7" in texts(timeline(rank(0, lane("stream 7", [], Kind.COMPUTE))))


@pytest.mark.parametrize("suffix", [".png", ".svg", ".PNG"])
@pytest.mark.parametrize("picture", [timeline(), timeline(rank(0)), timeline(PAIR)], ids=["empty", "no lanes", "pair"])
def test_the_suffix_chooses_the_format(tmp_path: Path, suffix: str, picture: Timeline) -> None:
    path = tmp_path / f"timeline{suffix}"
    plots.draw_timeline(picture, path)
    start = path.read_bytes()[:8]
    assert start == b"\x89PNG\r\n\x1a\n" if suffix.lower() == ".png" else start.startswith(b"<?xml")


def test_another_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"timeline\.gif"):
        plots.draw_timeline(timeline(PAIR), tmp_path / "timeline.gif")
    assert list(tmp_path.iterdir()) == []


def test_the_same_timeline_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        plots.draw_timeline(timeline(PAIR), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_odd_names_are_drawn_as_they_are_spelt_and_never_cut(tmp_path: Path) -> None:
    """Mathematics, escapes and letters the font lacks are no business of the picture's."""
    title = "$\\frac{1}{2}$ \x1b[31m 北京 · " + "long " * 60
    picture = timeline(rank(0, lane(title, [(0, 1)], Kind.GRAPH), title=title, compute="$x$"))
    plots.draw_timeline(picture, tmp_path / "odd.png")
    fig = plots.figure(picture)
    width = fig.get_size_inches()[0] * plots.DPI
    assert sum(text.get_text().count("long") for text in fig.axes[0].get_yticklabels()) == 60
    for text in [*fig.axes[0].texts, *fig.axes[0].get_yticklabels()]:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= width


@pytest.mark.parametrize(
    ("bars", "rows"),
    [
        ([], []),
        ([(0, 10), (10, 20)], [0, 0]),
        ([(0, 10), (5, 20), (10, 30)], [0, 1, 0]),
        ([(5, 20), (0, 10), (6, 8)], [1, 0, 2]),
        ([(0, 10), (9, 20)], [0, 1]),
        ([(0, 10), (9.5, 20)], [0, 0]),
        ([(0, 9)] * 14, [*range(12), 0, 0]),
    ],
)
def test_bars_that_hide_a_pixel_of_each_other_stand_on_rows_of_their_own(
    bars: list[tuple[float, float]], rows: list[int]
) -> None:
    times = np.array(bars, dtype=float).reshape(-1, 2)
    assert plots._stacked(times[:, 0], times[:, 1], 1.0).tolist() == rows


@pytest.mark.parametrize(
    ("bars", "drawn"),
    [
        ([], []),
        ([(0, 10), (10, 20)], [(0, 10), (10, 10)]),
        ([(0.0, 0.1)], [(0, 1)]),
        ([(0.0, 0.2), (0.5, 0.7), (1.5, 1.9), (9.0, 9.5)], [(0, 1.9), (9, 1)]),
        ([(0.0, 0.2), (0.3, 5.0)], [(0, 1), (0.3, 4.7)]),
    ],
)
def test_bars_narrower_than_a_pixel_are_joined_and_stay_visible(
    bars: list[tuple[float, float]], drawn: list[tuple[float, float]]
) -> None:
    times = np.array(bars, dtype=float).reshape(-1, 2)
    found = plots._merged(times[:, 0], times[:, 1], 1.0)
    np.testing.assert_allclose(np.reshape(found, (-1, 2)), np.reshape(drawn, (-1, 2)))


def test_a_million_kernels_become_as_many_bars_as_there_are_pixels() -> None:
    start = np.arange(1_000_000, dtype=np.int64) * 100
    many = Lane(
        rank=0, title="", start_ns=start, end_ns=start + 50, kind=np.zeros(1_000_000, dtype=np.int8), label=("",) * 1_000_000
    )
    fig = plots.figure(timeline(rank(0, many)))
    assert sum(len(collection.get_paths()) for collection in fig.axes[0].collections) < plots.PLOT_INCHES * plots.DPI


@pytest.mark.parametrize("count", [1, 16, 40])
def test_the_size_grows_with_the_ranks_up_to_a_limit(count: int) -> None:
    picture = timeline(*[replace(PAIR, rank=number) for number in range(count)])
    fig = plots.figure(picture)
    one = plots.figure(timeline(PAIR)).get_size_inches()[1] - plots.HEAD_INCHES - plots.FOOT_INCHES
    height = fig.get_size_inches()[1] - plots.HEAD_INCHES - plots.FOOT_INCHES
    assert height == pytest.approx(one * min(count, plots.MOST_RANKS))
    assert height <= plots.TALLEST_INCHES
    assert ("first 32 shown" in "".join(texts(picture))) == (count == 40)


def test_inline_svg_is_an_element_in_the_colour_of_the_page(one_lane: Timeline) -> None:
    svg = plots.inline_svg(one_lane)
    assert svg.startswith('<svg role="img" aria-label="Timeline: step 4; 1 rank"')
    assert svg.rstrip().endswith("</svg>")
    assert plots.INK.lower() not in svg
    assert ">stream 7<" in svg


def test_pyplot_is_never_loaded() -> None:
    code = "import sys, ddpprof.reports.plots; print('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
