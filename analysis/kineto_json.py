"""A torch.profiler JSON file, plain or gzip, as parts small enough to hold, whatever its size or damage.

Each part is a piece of the file, closed so that it is a trace document of its own. A cut is known to be right when the
piece decodes and a last event put behind it lands in the ``traceEvents`` of the document itself. Numbers with a point
become Decimal: no digit is lost. Kineto writes what JSON does not know (bare ``inf`` and ``nan``, control characters,
bytes that are not UTF-8); pieces that do not decode are mended and tried again.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec

from ddpprof.errors import InputError

PART_BYTES: Final = 2**20
_CUTS_TRIED: Final = 16
_OPEN: Final = b'{"traceEvents":['
_CLOSE: Final = b',{"ph":"end of part"}]}'
_SEPARATORS: Final = b" \t\r\n,"
_BARE: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\Z)|-?\b(?:nan|inf(?:inity)?)\b', re.IGNORECASE | re.DOTALL)
_CONTROLS: Final = dict.fromkeys(range(32), " ")


class Event(msgspec.Struct, gc=False):
    """One trace event; times are int or Decimal microseconds, whatever else stands there is kept as it is."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: msgspec.Raw = msgspec.Raw()


class Arguments(msgspec.Struct, gc=False):
    """What is read of an event's ``args``. A copy between devices has ``inDevice`` instead of ``device``."""

    device: Any = None
    inDevice: Any = None
    stream: Any = None
    correlation: Any = None
    external: Any = msgspec.field(default=None, name="External id")
    external_before_2022: Any = msgspec.field(default=None, name="external id")
    labels: Any = None


class Document(msgspec.Struct):
    """A trace file, or a part of one. Keys other than ``traceEvents`` are in whichever part holds them."""

    traceEvents: list[Event | None] | None = None
    nodes: msgspec.Raw = msgspec.Raw()
    distributedInfo: Any = None
    deviceProperties: Any = None
    baseTimeNanoseconds: Any = None
    schemaVersion: Any = None
    INFO: Any = None
    WARNING: Any = None
    ERROR: Any = None


class BrokenOff(Exception):
    """Raised behind the last part of a file that is cut off or damaged: every event before that was handed out."""


_HEAD: Final = tuple(name for name in Document.__struct_fields__ if name not in ("traceEvents", "nodes"))
_documents: Final = msgspec.json.Decoder(Document, float_hook=Decimal)
_arguments: Final = msgspec.json.Decoder(Arguments)
_UNREADABLE: Final = (msgspec.DecodeError, InvalidOperation)


def arguments(event: Event) -> Arguments:
    """The event's ``args``, all None where it has none."""
    try:
        return _arguments.decode(event.args)
    except _UNREADABLE:
        return Arguments()


def head(part: Document) -> dict[str, Any]:
    """The keys of a document that say something about the whole trace, by name, where this part holds them."""
    values = {name: getattr(part, name) for name in _HEAD}
    return {name: value for name, value in values.items() if value is not None}


def parts(path: Path) -> Iterator[Document]:
    """The file's documents in order, of about a mebibyte each.

    Raises InputError for what is no trace, and BrokenOff at the end of one that is not whole.
    """
    pending: list[bytes] = []
    size, enough, is_trace = 0, 1, False
    for block in _blocks(path):
        pending.append(block)
        size += len(block)
        if len(block) < PART_BYTES or size < enough:
            continue
        buffer = b"".join(pending)
        if not is_trace and not buffer.lstrip().startswith(b"{"):
            raise _not_a_trace(path, buffer)
        found = _split(buffer) or _split(buffer := _mended(buffer))
        if found:
            part, cut = found
            buffer, enough, is_trace = _OPEN + buffer[cut:].lstrip(_SEPARATORS), 1, True
            yield part
        else:
            enough = 2 * len(buffer)
        pending, size = [buffer], len(buffer)
    buffer = b"".join(pending)
    try:
        last = _decode(buffer)
    except _UNREADABLE:
        last = None
    if last is not None and last.traceEvents is not None:
        yield last
        return
    if last is None:
        for part in _whole_events(_mended(buffer)):
            is_trace = True
            yield part
    if not is_trace:
        raise _not_a_trace(path, buffer, last)
    raise BrokenOff


def _blocks(path: Path) -> Iterator[bytes]:
    """The file's bytes, unpacked, in blocks of at least PART_BYTES but for the last; a broken gzip file just ends there."""
    try:
        with path.open("rb") as file:
            stream = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
            block = bytearray()
            with suppress(EOFError, zlib.error, gzip.BadGzipFile):
                while piece := stream.read1(PART_BYTES):
                    block += piece
                    if len(block) >= PART_BYTES:
                        yield bytes(block)
                        block.clear()
            yield bytes(block)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None


def _split(buffer: bytes) -> tuple[Document, int] | None:
    """The whole events that ``buffer`` begins with, as a document, and the place behind them; None when no cut is right."""
    for cut in islice(_ends_of_objects(buffer), _CUTS_TRIED):
        try:
            part = _documents.decode(buffer[:cut] + _CLOSE)
        except _UNREADABLE:
            continue
        events = part.traceEvents
        if events and events[-1] is not None and events[-1].ph == "end of part":
            events.pop()
            return part, cut
    return None


def _ends_of_objects(buffer: bytes) -> Iterator[int]:
    """Places behind a ``}`` that ends an element of a list or a value before another, last first."""
    end = len(buffer)
    while (end := buffer.rfind(b"}", 0, end)) >= 0:
        if buffer[end + 1 : end + 80].lstrip().startswith((b",", b"]")):
            yield end + 1


def _whole_events(buffer: bytes) -> Iterator[Document]:
    """What can be read of a document up to the place where it breaks, found by halving."""
    size = len(buffer)
    while size:
        found = _split(buffer[:size] + b",")
        if found:
            part, cut = found
            yield part
            buffer = _OPEN + buffer[cut:].lstrip(_SEPARATORS)
            size = len(buffer)
        else:
            size //= 2


def _decode(text: bytes) -> Document:
    try:
        return _documents.decode(text)
    except _UNREADABLE:
        return _documents.decode(_mended(text))


def _mended(text: bytes) -> bytes:
    """``text`` with null for bare nan and inf, spaces for control characters, U+FFFD for bytes that are not UTF-8.

    What stands behind the last ``}`` may be half a word, and is left alone.
    """
    end = text.rfind(b"}") + 1
    clean = text[:end].decode("utf-8", "replace").translate(_CONTROLS)
    return _BARE.sub(lambda match: match[0] if match[0].startswith('"') else "null", clean).encode() + text[end:]


def _not_a_trace(path: Path, text: bytes, document: Document | None = None) -> InputError:
    hint = "Give the JSON that torch.profiler's export_chrome_trace or tensorboard_trace_handler wrote."
    if not text.strip():
        return InputError(f"{path}: empty file", hint)
    if document is None and b'"traceEvents"' in text:
        return InputError(f"{path}: cut off before its first event", "Copy the file again, or profile again.")
    if document is None and not text.lstrip().startswith(b"["):
        return InputError(f"{path}: not JSON", hint)
    if document is not None and bytes(document.nodes):
        return InputError(f"{path}: an execution trace, not a profiler trace (no traceEvents)", hint)
    return InputError(f"{path}: not a profiler trace (no traceEvents)", hint)
