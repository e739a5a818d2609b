"""What one would write in an afternoon: rows of sqlite3, one Python loop, overlap per process and device."""

from __future__ import annotations

import sqlite3
import sys
from collections import defaultdict

QUERY = """
    SELECT k.globalPid, k.deviceId, k.start, k."end", s.value LIKE '%nccl%'
    FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName ORDER BY k.start
"""


def overlap(events: list[tuple[int, int, bool]]) -> int:
    """Time with both kinds running, by one sweep over the edges."""
    edges = sorted([(start, 1, kind) for start, _, kind in events] + [(end, -1, kind) for _, end, kind in events])
    depth = [0, 0]
    total = last = 0
    for time, change, kind in edges:
        if depth[0] and depth[1]:
            total += time - last
        depth[kind] += change
        last = time
    return total


def main(path: str) -> None:
    lanes: dict[tuple[int, int], list[tuple[int, int, bool]]] = defaultdict(list)
    for process, device, start, end, is_comm in sqlite3.connect(path).execute(QUERY):
        lanes[process, device].append((start, end, bool(is_comm)))
    for key, events in sorted(lanes.items()):
        print(key, overlap(events))


if __name__ == "__main__":
    main(sys.argv[1])
