"""Columns put into the order that a Trace promises, whichever tables and runs they come in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ddpprof.analysis import assemble

Row = tuple[int, int, int]
"""Process, device and start of an operation."""

rows = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 2), st.integers(-5, 50)), max_size=30)


def part(found: list[Row], first: int) -> dict[str, NDArray[Any]]:
    """The columns of a table with these rows; ``stream`` numbers them from ``first`` and the other columns repeat it."""
    process, device, start = np.array(found, np.int64).reshape(-1, 3).T
    number = np.arange(first, first + len(found))
    columns = {name: number.astype(np.int8) for name in assemble.OPERATION_TYPES}
    return columns | {"process": process.copy(), "device": device.copy(), "start_ns": start.copy(), "stream": number}


@given(rows, rows, rows)
def test_operations_are_ordered_by_process_device_and_start(first: list[Row], second: list[Row], third: list[Row]) -> None:
    every = first + second + third
    parts = [part(first, 0), part(second, len(first)), part(third, len(first) + len(second))]
    found = assemble.operations(parts)
    columns = (found.process, found.device, found.start_ns, found.stream)
    expected = sorted((*row, number) for number, row in enumerate(every))
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == expected
    for name, kind in assemble.OPERATION_TYPES.items():
        assert getattr(found, name).dtype == kind
        if name not in ("process", "device", "start_ns"):
            assert getattr(found, name).tolist() == [number for *_, number in expected]
    assert parts == [{}, {}, {}]


def test_no_operations() -> None:
    assert len(assemble.operations([])) == 0


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint32(), pa.int64()])
def test_an_arrow_array_shares_its_memory(kind: pa.DataType) -> None:
    column = pa.array([5, 6, 7, 8], kind)
    assert assemble.from_arrow(column[1:3]).tolist() == [6, 7]
    assert assemble.from_arrow(column[:0]).tolist() == []
    assert assemble.from_arrow(column).__array_interface__["data"][0] == column.buffers()[1].address


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_codes_are_by_first_appearance(values: list[int]) -> None:
    codes, distinct = assemble.factorize(np.array(values, np.int64))
    assert distinct.tolist() == list(dict.fromkeys(values))
    assert distinct[codes].tolist() == values


def test_every_other_row_of_a_table_has_codes_too() -> None:
    codes, distinct = assemble.factorize(np.array([7, 0, 8, 0, 7])[::2])
    assert (codes.tolist(), distinct.tolist()) == ([0, 1, 0], [7, 8])
