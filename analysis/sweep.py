"""The caps of a sweep judged: what each took and showed, whether the job heeds the cap at all, and which caps to take."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ddpprof.analysis.timing import are_apart, timing, unsteady
from ddpprof.model import Analysis, CapRow, RankRow, Records, Sameness

MIB = 2**20
WARMUP = 4
"""Steps of somebody's own job before the first that counts: past the rebuild of a static graph, and one more."""

Trajectory = dict[tuple[int, int], tuple[float, str | None]]


def cap_row(
    cap_mb: float,
    analysis: Analysis | None,
    rounds: Sequence[Sequence[int]],
    *,
    is_correct: bool | None = None,
    failure: str | None = None,
) -> CapRow:
    """The row of one cap: the steps (ns) of each round that ended well, and what its capture shows of the worst rank."""
    found = timing([step for steps in rounds for step in steps])
    worst = None if analysis is None else _worst(analysis.ranks)
    shown = {name: getattr(worst, name, None) for name in ("overlap_ns", "overlap_ratio", "exposed_comm_ns", "tail_ns")}
    return CapRow(
        cap_mb=cap_mb,
        rounds=len(rounds),
        timing=found,
        launches=getattr(worst, "n_comm", None),
        bucket_bytes=None if analysis is None or worst is None else _buckets(analysis, worst),
        worst_rank=getattr(worst, "rank", None),
        is_correct=is_correct,
        unsteady=unsteady(found),
        failure=failure,
        **shown,
    )


def _worst(ranks: Sequence[RankRow]) -> RankRow | None:
    """The row with the most exposed communication, the first of equals; None without any row."""
    return max(ranks, key=lambda row: (row.n_comm > 0, row.exposed_comm_ns), default=None)


def _buckets(analysis: Analysis, worst: RankRow) -> tuple[int, ...] | None:
    """Bytes of each bucket in the last step of a rank, in order of launch; None when a size is not known, or no bucket is."""
    key = (worst.report, worst.pid, worst.device_id)
    rows = [row for row in analysis.buckets if (row.report, row.pid, row.device_id) == key and row.bucket is not None]
    last = rows[-1].step if rows else None
    sizes = [row.size_bytes for row in rows if row.step == last]
    known = tuple(size for size in sizes if size is not None)
    return known if known and len(known) == len(sizes) else None


def captured_steps(analysis: Analysis) -> list[int]:
    """What each complete, numbered step of a capture took the job (ns), its warm-up left out; none without step ranges."""
    if analysis.window == "capture":
        return []
    rows = [row for row in analysis.breakdown if row.reason is None and row.step is not None]
    return slowest((row.step, row.step_ns) for row in rows if row.step is not None)


def slowest(steps: Iterable[tuple[int, int]]) -> list[int]:
    """Of (step, ns) of all ranks the largest of each step, in step order, warm-up left out."""
    longest: dict[int, int] = defaultdict(int)
    for step, took_ns in steps:
        longest[step] = max(longest[step], took_ns)
    return [longest[step] for step in sorted(longest) if step >= WARMUP]


def trajectory(records: Records) -> Trajectory:
    """Loss and hash of the parameters after each timed step, by step and rank: equal for every cap of a correct job."""
    return {(row.step, row.rank): (row.loss, row.replica_hash) for row in records.iterations if not row.is_captured}


def has_equal_replicas(found: Trajectory) -> bool:
    """Whether all ranks had the same parameters after every step."""
    hashes: dict[int, set[str | None]] = defaultdict(set)
    for (step, _), (_, replica) in found.items():
        hashes[step].add(replica)
    return all(len(values) == 1 for values in hashes.values())


def sameness(rows: Sequence[CapRow]) -> Sameness | None:
    """Why the captures of all caps show the same buckets; None when they differ, or fewer than two caps have a capture."""
    seen = [row for row in rows if row.launches is not None]
    if len(seen) < 2 or len({(row.launches, row.bucket_bytes) for row in seen}) > 1:
        return None
    sizes = seen[0].bucket_bytes
    least, most = min(row.cap_mb for row in seen) * MIB, max(row.cap_mb for row in seen) * MIB
    if sizes is None:
        return "ignored"
    if sum(sizes) <= least:
        return "fits"
    return "parameters" if all(size >= most for size in sizes[:-1] or sizes) else "ignored"


def drifting(rows: Sequence[CapRow]) -> tuple[CapRow, ...]:
    """The rows, unsteady those that the spread sets apart from one with the same buckets: that is the same job, run later."""

    def caution(row: CapRow) -> str | None:
        for other in rows:
            is_same = row.bucket_bytes is not None and row.bucket_bytes == other.bucket_bytes
            if is_same and row.timing and other.timing and are_apart(row.timing, other.timing):
                return (
                    f"apart from {other.cap_mb:g} MiB, where the buckets are the same: the machine drifts more than this spread"
                )
        return None

    return tuple(replace(row, unsteady=row.unsteady or caution(row)) for row in rows)


def recommended(rows: Sequence[CapRow]) -> tuple[float, ...]:
    """The caps whose spread does not set them apart from the fastest; none when no cap ran to its end with correct results.

    A cap that failed, or trained otherwise than the others, is not among them.
    """
    good = [(row.cap_mb, row.timing) for row in rows if row.timing and row.failure is None and row.is_correct is not False]
    if not good:
        return ()
    _, best = min(good, key=lambda item: item[1].median_ns)
    return tuple(cap for cap, found in good if not are_apart(found, best))
