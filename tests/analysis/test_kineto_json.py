"""A trace file in parts says what the file says: wherever it is cut, whatever it holds, however it ends."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpprof.analysis import kineto_json
from ddpprof.errors import InputError

THREE = '{"schemaVersion":1,"traceEvents":[{"name":"a"},{"name":"b"},{"name":"c"}],"traceName":"x"}'

texts = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(['},{"', "]}", '"', "\\", "inf", "nan,"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
events = st.fixed_dictionaries({"name": texts, "ts": st.integers(0, 10**6), "args": st.dictionaries(texts, values, max_size=3)})
heads = st.dictionaries(st.sampled_from(["deviceProperties", "distributedInfo", "traceName", "extra"]), values, max_size=3)


def names(path: Path) -> list[Any]:
    return [event and event.name for part in kineto_json.parts(path) for event in part.traceEvents or ()]


def names_before_the_break(path: Path) -> list[Any]:
    found: list[Any] = []
    with pytest.raises(kineto_json.BrokenOff):
        found.extend(event and event.name for part in kineto_json.parts(path) for event in part.traceEvents or ())
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(
    before=heads,
    rows=st.lists(events, max_size=12),
    after=heads,
    indent=st.sampled_from([None, 0, 2]),
    part_bytes=st.integers(1, 200),
)
def test_parts_together_are_the_document(
    tmp_path: Path, before: dict[str, Any], rows: list[Any], after: dict[str, Any], indent: int | None, part_bytes: int
) -> None:
    document = before | {"traceEvents": rows} | {key: value for key, value in after.items() if key not in before}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document, indent=indent, ensure_ascii=False), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto_json, "PART_BYTES", part_bytes)
        parts = list(kineto_json.parts(path))
    found = [event for part in parts for event in part.traceEvents or () if event is not None]
    assert [(event.name, event.ts, json.loads(bytes(event.args))) for event in found] == [
        (row["name"], row["ts"], row["args"]) for row in rows
    ]
    head: dict[str, Any] = {}
    for part in parts:
        head |= kineto_json.head(part)
    known = {"deviceProperties", "distributedInfo"}
    assert head == {key: value for key, value in document.items() if key in known and value is not None}


def test_lists_of_objects_beside_the_events_are_no_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus, path = [{"id": 0}, {"id": 1}, {"id": 2}], tmp_path / "trace.json"
    rows = [{"name": "a", "args": {"x": [{}, {}]}}, {"name": "b"}]
    for document in ({"deviceProperties": gpus, "traceEvents": rows}, {"traceEvents": rows, "deviceProperties": gpus}):
        path.write_text(json.dumps(document))
        for part_bytes in range(1, 100):
            monkeypatch.setattr(kineto_json, "PART_BYTES", part_bytes)
            parts = list(kineto_json.parts(path))
            assert [event.name for part in parts for event in part.traceEvents or () if event] == ["a", "b"], part_bytes
            assert [part.deviceProperties for part in parts if part.deviceProperties] == [gpus], part_bytes


def test_a_large_file_comes_in_parts_of_a_mebibyte(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": [{"name": "x" * 1000}] * 3000}))
    sizes = [sum(len(event.name) for event in part.traceEvents or () if event) for part in kineto_json.parts(path)]
    assert sum(sizes) == 3_000_000
    assert len(sizes) == 3
    assert max(sizes) < 2 * kineto_json.PART_BYTES


@pytest.mark.parametrize("part_bytes", [16, 2**20])
def test_cut_anywhere_every_whole_event_before_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    monkeypatch.setattr(kineto_json, "PART_BYTES", part_bytes)
    path = tmp_path / "trace.json"
    ends = [THREE.index("}", THREE.index(f'"{name}"')) + 1 for name in "abc"]
    for size in range(ends[0], len(THREE)):
        path.write_text(THREE[:size])
        assert names_before_the_break(path) == list("abc")[: sum(end <= size for end in ends)], THREE[:size]
    path.write_text(THREE)
    assert names(path) == ["a", "b", "c"]


def test_damage_in_the_middle_keeps_what_is_before(tmp_path: Path) -> None:
    rows = [json.dumps({"name": str(at), "args": {"x": [{}, {}]}}) for at in range(1000)]
    rows[700] = rows[700].replace("{}", "{:}", 1)
    (tmp_path / "trace.json").write_text('{"traceEvents":[' + ",".join(rows) + "]}")
    assert names_before_the_break(tmp_path / "trace.json") == [str(at) for at in range(700)]


def test_gzip_is_told_by_content_and_may_be_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    packed = gzip.compress(THREE.encode())
    path.write_bytes(packed)
    assert names(path) == ["a", "b", "c"]
    path.write_bytes(packed[:-8])  # only the check sum is gone: nothing is missing
    assert names(path) == ["a", "b", "c"]
    text = json.dumps({"traceEvents": [{"name": str(at)} for at in range(20_000)]}).encode()
    path.write_bytes(gzip.compress(text)[:10_000])
    found = names_before_the_break(path)
    assert found == [str(at) for at in range(len(found))]
    assert len(found) > 1000
    path.write_bytes(gzip.compress(text[:100_000]) + gzip.compress(text[100_000:]))
    assert len(names(path)) == 20_000


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "-nan", "NaN", "Infinity", "-Infinity"])
def test_bare_inf_and_nan_are_null_but_stay_in_texts(tmp_path: Path, value: str) -> None:
    text = f'{{"traceEvents":[{{"name":"inf, nan \\"inf","ts":{value},"args":{{"x":{value}}}}},{{"name":"b"}}]}}'
    (tmp_path / "trace.json").write_text(text)
    (part,) = kineto_json.parts(tmp_path / "trace.json")
    first = (part.traceEvents or [None])[0]
    assert first is not None
    assert (first.name, first.ts, bytes(first.args)) == ('inf, nan "inf', None, b'{"x":null}')


def test_a_word_cut_by_the_end_of_a_part_is_whole_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '{"traceEvents":[{"name":"a","ts":Infinity},{"name":"b","ts":-Infinity},{"name":"é","ts":NaN}]}'
    (tmp_path / "trace.json").write_text(text, encoding="utf-8")
    for part_bytes in range(1, len(text) + 2):
        monkeypatch.setattr(kineto_json, "PART_BYTES", part_bytes)
        assert names(tmp_path / "trace.json") == ["a", "b", "é"], part_bytes


def test_control_characters_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(b'{"traceEvents":[{"name":"a\tb"},{"name":"c\xff"}]}')
    assert names(tmp_path / "trace.json") == ["a b", "c\ufffd"]


def test_numbers_with_a_point_keep_every_digit(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(
        '{"traceEvents":[{"ts":1700000000123456.789,"dur":1e-3},{"ts":"7","dur":[1]},null,{}]}'
    )
    (part,) = kineto_json.parts(tmp_path / "trace.json")
    found = [(event.ts, event.dur) for event in part.traceEvents or () if event]
    assert found == [(Decimal("1700000000123456.789"), Decimal("0.001")), ("7", [1]), (None, None)]


def test_arguments_of_an_event() -> None:
    def arguments(text: bytes) -> kineto_json.Arguments:
        return kineto_json.arguments(kineto_json.Event(args=msgspec.Raw(text)))

    assert arguments(b'{"device":1,"External id":7,"grid":[1,1,1]}') == kineto_json.Arguments(device=1, external=7)
    assert arguments(b"[1]") == arguments(b"") == kineto_json.Arguments()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty file"),
        (b" \n", "empty file"),
        (gzip.compress(b""), "empty file"),
        (b"SQLite format 3\x00" + b"\xff" * 100, "not JSON"),
        (b'{"traceEvents": nothing}', "cut off before its first event"),
        (b'{"a": 1', "not JSON"),
        (b'{"schemaVersion": 1, "traceEvents": [', "cut off before its first event"),
        (b'{"schemaVersion": 1, "traceEvents": [{"name": "a", "ts', "cut off before its first event"),
        (b'[{"ph": "X"}]', "not a profiler trace (no traceEvents)"),
        (b'{"displayTimeUnit": "ms"}', "not a profiler trace (no traceEvents)"),
        (b'{"schema": "1.0.1", "nodes": [{"id": 1}]}', "an execution trace, not a profiler trace (no traceEvents)"),
    ],
)
def test_what_is_no_trace_is_said_in_a_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        list(kineto_json.parts(path))
    assert error.value.message == f"{path}: {message}"
    assert error.value.hint


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        list(kineto_json.parts(tmp_path / "none.json"))
    with pytest.raises(InputError, match="cannot be read"):
        list(kineto_json.parts(tmp_path))
