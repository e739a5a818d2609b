"""The only place where a number becomes text, and foreign text becomes fit to print.

Rounding never hides what is there: a time above zero is never shown as 0, and a share is shown as 0 % or 100 % only
when it is exactly that. The times of one table share one unit, so that its columns can be compared by eye.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

MISSING_TEXT = "n/a"

_BINARY = ("KiB", "MiB", "GiB", "TiB")
_ASCII = str.maketrans(
    {"×": "x", "·": "-", "−": "-", "–": "-", "—": "-", "…": "...", "→": "->", "≥": ">=", "≤": "<=", "≈": "~", "±": "+-"}
    | {"µ": "u", "μ": "u", "α": "alpha", "β": "beta", "∩": "and", "∪": "or", "‘": "'", "’": "'", "“": '"', "”": '"'}
)
_MARKUP = re.compile(r"[\\`*<>\[\]|~&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


@dataclass(frozen=True, slots=True)
class Scale:
    """A unit for a whole table of times: ``per`` nanoseconds each, shown with ``decimals``."""

    unit: str
    per: int
    decimals: int

    def number(self, value_ns: int | None) -> str:
        """The time without its unit: ``44.273``; ``<0.001`` when it is smaller than what can be shown."""
        if value_ns is None:
            return MISSING_TEXT
        least = 10**-self.decimals
        if value_ns and abs(value_ns) / self.per < least / 2:
            return f"{'<' if value_ns > 0 else '>-'}{least:.{self.decimals}f}"
        return f"{value_ns / self.per:,.{self.decimals}f}"


NANO, MICRO, MILLI = Scale("ns", 1, 0), Scale("us", 1_000, 3), Scale("ms", 1_000_000, 3)


def scale(values_ns: Iterable[int | None]) -> Scale:
    """The unit that suits the largest of ``values_ns``; ns when there is none."""
    largest = max((abs(value) for value in values_ns if value is not None), default=0)
    return MILLI if largest >= MILLI.per else MICRO if largest >= MICRO.per else NANO


def ns(value: int | None) -> str:
    """A time on its own: ``44.273 ms``, ``812.4 us``, ``950 ns``."""
    if value is None:
        return MISSING_TEXT
    if abs(value) >= 999_950:
        return f"{value / MILLI.per:,.3f} ms"
    return f"{value / MICRO.per:.1f} us" if abs(value) >= MICRO.per else f"{value} ns"


def count(value: int | None) -> str:
    """A whole number with its thousands apart: ``44,272,812``."""
    return MISSING_TEXT if value is None else f"{value:,}"


def percent(ratio: float | None) -> str:
    """A ratio as the number before ``%``: ``90.2``; ``0`` and ``100`` only when it is exactly that."""
    if ratio is None:
        return MISSING_TEXT
    if ratio in (0, 1):
        return f"{ratio * 100:.0f}"
    text = f"{ratio * 100:.1f}"
    return {"0.0": "<0.1", "100.0": ">99.9"}.get(text, text)


def share(ratio: float | None) -> str:
    """A ratio on its own: ``90.2 %``."""
    return MISSING_TEXT if ratio is None else f"{percent(ratio)} %"


def size(value: int | None) -> str:
    """Bytes in binary units: ``4.00 MiB``, ``512 B``."""
    if value is None:
        return MISSING_TEXT
    if abs(value) < 1024:
        return f"{value} B"
    power = 1
    while power < len(_BINARY) and abs(value) >= 1023.995 * 1024**power:
        power += 1
    return f"{value / 1024**power:,.2f} {_BINARY[power - 1]}"


def gigabytes(rate: float | None) -> str:
    """Bytes per second as the number before ``GB/s``, decimal as nccl-tests prints bandwidth: ``0.85``."""
    return MISSING_TEXT if rate is None else f"{rate / 1e9:,.2f}"


def quantity(value: object, unit: str) -> str:
    """The text of a value with its declared unit (``model.Column.unit``)."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return MISSING_TEXT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return " ".join(quantity(item, unit) for item in value) or "-"
    if isinstance(value, int) and unit in _WHOLE:
        return _WHOLE[unit](value)
    if isinstance(value, int | float) and unit == "ratio":
        return share(value)
    return clean(f"{value:g}" if isinstance(value, float) else str(value))


_WHOLE = {"ns": ns, "bytes": size, "count": count}


def named(name: str, value: object) -> str:
    """The text of a value whose unit its name tells: ``exposed_comm_ns`` is a time, ``overlap_ratio`` a share."""
    return quantity(value, unit_of(name))


def unit_of(name: str) -> str:
    """The unit that a name ends in: ``ns``, ``bytes``, ``ratio``, else ``text``."""
    return next((unit for unit in ("ns", "bytes", "ratio") if name.endswith(f"_{unit}")), "text")


def clean(text: str) -> str:
    """``text`` on one line, control and direction characters spelt out, so that a name cannot drive a terminal."""
    line = " ".join(text.split())
    return line if line.isprintable() else "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


def plain(text: str) -> str:
    """``clean`` text in ASCII alone: common signs by their usual spelling, all others as escapes."""
    return clean(text).translate(_ASCII).encode("ascii", "backslashreplace").decode()


def markdown(text: str) -> str:
    """``clean`` text with everything escaped that Markdown would read as markup, table cells included."""
    return _MARKUP.sub(r"\\\g<0>", clean(text))
