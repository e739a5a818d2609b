from __future__ import annotations

import pytest

from ddpprof.reports import quantities


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0, "0 ns"),
        (950, "950 ns"),
        (999, "999 ns"),
        (1_000, "1.0 us"),
        (812_400, "812.4 us"),
        (999_949, "999.9 us"),
        (999_950, "1.000 ms"),
        (44_272_812, "44.273 ms"),
        (7_811_000_000, "7,811.000 ms"),
        (-2_500, "-2.5 us"),
    ],
)
def test_a_time_on_its_own(value: int | None, text: str) -> None:
    assert quantities.ns(value) == text


@pytest.mark.parametrize(
    ("values", "unit", "texts"),
    [
        ([44_272_812, 950, 0, None, -1], "ms", ["44.273", "0.001", "0.000", "n/a", ">-0.001"]),
        ([2_000_000, 499], "ms", ["2.000", "<0.001"]),
        ([999_999, 1], "us", ["999.999", "0.001"]),
        ([999, 1], "ns", ["999", "1"]),
        ([None], "ns", ["n/a"]),
    ],
)
def test_one_unit_for_a_whole_column(values: list[int | None], unit: str, texts: list[str]) -> None:
    scale = quantities.scale(values)
    assert scale.unit == unit
    assert [scale.number(value) for value in values] == texts


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (None, "n/a"),
        (0.0, "0 %"),
        (0.0001, "<0.1 %"),
        (0.9022584211313394, "90.2 %"),
        (0.99999, ">99.9 %"),
        (1.0, "100 %"),
    ],
)
def test_a_share_is_0_or_100_only_when_it_is_exactly_that(ratio: float | None, text: str) -> None:
    assert quantities.share(ratio) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "n/a"),
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_024, "1.00 KiB"),
        (1_048_575, "1.00 MiB"),
        (4 * 1024**2, "4.00 MiB"),
        (50_331_648, "48.00 MiB"),
        (2_048 * 1024**4, "2,048.00 TiB"),
    ],
)
def test_bytes(value: int | None, text: str) -> None:
    assert quantities.size(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (1_500, "count", "1,500"),
        (1_500, "ns", "1.5 us"),
        (1_500, "id", "1500"),
        (0.5, "ratio", "50.0 %"),
        (float("nan"), "ratio", "n/a"),
        (float("inf"), "text", "n/a"),
        (True, "text", "yes"),
        ((1, 2), "bytes", "1 B 2 B"),
        ((), "bytes", "-"),
        (2.5, "text", "2.5"),
        (None, "text", "n/a"),
    ],
)
def test_a_value_with_its_declared_unit(value: object, unit: str, text: str) -> None:
    assert quantities.quantity(value, unit) == text


def test_a_name_tells_the_unit() -> None:
    assert quantities.named("tail_ns", 4_796_070) == "4.796 ms"
    assert quantities.named("size_bytes", 1_024) == "1.00 KiB"
    assert quantities.named("overlap_ratio", 0.5) == "50.0 %"
    assert quantities.named("bucket", 11) == "11"


def test_foreign_text_cannot_drive_a_terminal() -> None:
    assert quantities.clean("a\x1b[31mb\r\n\tc\u202e") == "a\\x1b[31mb c\\u202e"
    assert quantities.plain("4 × 1 MiB → 北") == "4 x 1 MiB -> \\u5317"


@pytest.mark.parametrize("text", ["a|b", "*a*", "[a](b)", "<b>", "`a`", "a\\b", "~~a~~", "_a_", "__global__", "a&lt;"])
def test_markdown_escapes_markup(text: str) -> None:
    escaped = quantities.markdown(text)
    assert escaped != text
    assert escaped.replace("\\\\", "\0").replace("\\", "").replace("\0", "\\") == text


def test_markdown_leaves_plain_names_readable() -> None:
    assert quantities.markdown("n_compute on rank 0: 4.796 ms") == "n_compute on rank 0: 4.796 ms"
