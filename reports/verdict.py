"""What an Analysis says in sentences: on which evidence, about what, the answer, and what limits it. ASCII throughout."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ddpprof.model import CAUSES, FEW_STEPS, WARNING_CODES, Analysis, FailureRecord, Finding, RankRow, Warning
from ddpprof.reports import quantities

OPAQUE = "graph-trace-opaque"
EVIDENCE = {
    "gpu-kernels": "gpu-kernels: device intervals, as the GPU itself timed them",
    "host-ranges": "host-ranges: a CPU/gloo run, the host ranges are the execution; says nothing about a GPU",
}
QUESTION = "Is my communication hidden?"
CAUSE_QUESTION = "What holds the step back?"
HARDLY, MOSTLY = 0.05, 2 / 3
"""A share below the first is hardly any, one from the second on is most."""


def scope(analysis: Analysis) -> str:
    """What was measured, in one line: ranks, GPUs, sharing, steps."""
    parts = [_ranks(analysis), *_gpus(analysis), _window(analysis)]
    return "; ".join(parts if analysis.case is None else [f"case {analysis.case}", *parts])


def answer(analysis: Analysis) -> str:
    """The answer to QUESTION in one line; "Cannot be told" when the numbers would not bear one."""
    if not analysis.ranks:
        return "Cannot be told: the input shows no rank that did any work."
    rows = [row for row in analysis.ranks if OPAQUE not in row.unreliable]
    if not rows:
        return f"Cannot be told: {WARNING_CODES[OPAQUE]}."
    told = [(ratio, row) for row in rows if (ratio := row.overlap_ratio) is not None]
    if not told:
        return f"Nothing to hide: no communication was found on {names(rows, analysis)}."
    hidden = [(ratio, row) for ratio, row in told if row.n_compute]
    if not hidden:
        every = names([row for _, row in told], analysis)
        return f"Cannot be told: no compute was found on {every} for communication to hide behind."
    ratio, worst = min(hidden, key=lambda pair: (pair[0], -pair[1].exposed_comm_ns))
    best_ratio, best = max(hidden, key=lambda pair: pair[0])
    most = max((row for _, row in hidden), key=lambda row: row.exposed_comm_ns)
    place = " (on a CPU run)" if analysis.evidence == "host-ranges" else ""
    if ratio == 1:
        return f"Yes{place}: all communication is hidden on {names([row for _, row in hidden], analysis)}."
    if best_ratio == 0:
        every = names([row for _, row in hidden], analysis)
        why = " It runs on the compute stream." if any(warning.code == "same-stream" for warning in analysis.warnings) else ""
        return f"No{place}: no communication is hidden on {every}; {_exposed(most, analysis)}.{why}"
    text = f"{quantities.share(ratio)} of the communication is hidden on "
    if quantities.share(ratio) == quantities.share(best_ratio):
        text += names([row for _, row in hidden], analysis)
    else:
        text += f"{row_name(worst, analysis)} (worst), {quantities.share(best_ratio)} on {row_name(best, analysis)} (best)"
    some = "Hardly" if best_ratio < HARDLY else "Not on every rank"
    word = "Mostly" if ratio >= MOSTLY else "Partly" if ratio >= HARDLY else some
    text = f"{word}{place}: {text}; {_exposed(worst, analysis)}"
    return f"{text}." if most.exposed_comm_ns == worst.exposed_comm_ns else f"{text}; {_exposed(most, analysis)} (most)."


def _exposed(row: RankRow, analysis: Analysis) -> str:
    where = f"{row_name(row, analysis)}: " if len(analysis.ranks) > 1 else ""
    each = "over the whole capture" if analysis.window == "capture" else "per step"
    return f"{where}{quantities.ns(row.exposed_comm_ns)} of {quantities.ns(row.comm_ns)} exposed {each}"


def cautions(analysis: Analysis) -> list[str]:
    """What limits the answer, a sentence each; empty when nothing does."""
    rows = analysis.ranks
    if all(OPAQUE in row.unreliable for row in rows):
        return []
    found = [
        f"Unreliable on {names([row for row in rows if code in row.unreliable], analysis)}: {WARNING_CODES.get(code, code)}."
        for code in dict.fromkeys(code for row in rows for code in row.unreliable)
    ]
    sliced = [row for row in rows if row.is_time_sliced]
    if sliced:
        found.append(
            f"Time-sliced, {names(sliced, analysis)}: a GPU is shared in turns, so intervals include time switched out. "
            "The numbers hold for this sharing and do not predict a GPU for each rank."
        )
    silent = [row for row in rows if row.overlap_ratio is None and OPAQUE not in row.unreliable]
    if silent and len(silent) < len(rows):
        found.append(f"No communication was found on {names(silent, analysis)}.")
    blind = [row for row in rows if row.n_comm and not row.n_compute and OPAQUE not in row.unreliable]
    if blind and len(blind) < len(rows):
        found.append(f"No compute was found on {names(blind, analysis)}: what is hidden there cannot be told.")
    if analysis.window == "step" and min(row.steps for row in rows) < FEW_STEPS:
        found.append(f"Fewer than {FEW_STEPS} complete steps: another step may well differ.")
    if any(row.overlap_ns for row in rows):
        found.append("Overlap is not time saved: compare measured step times.")
    return found


def cause(analysis: Analysis) -> str:
    """The answer to CAUSE_QUESTION in one line: the finding to act on."""
    warnings = [finding for finding in analysis.findings if finding.severity != "note"]
    if warnings:
        first = warnings[0]
        return f"{first.code}{_worst(first)}{_costs(first, analysis)}: {first.message}."
    if {item.code for item in analysis.not_judged} >= set(CAUSES):
        return f"Cannot be told: {analysis.not_judged[0].reason}."
    if analysis.findings:
        return "Nothing that could be judged costs enough to act on."
    return "Nothing that could be judged does."


def cause_line(analysis: Analysis) -> str:
    """``cause`` with its question for a first screen; "" when there is nothing to act on."""
    found = any(finding.severity != "note" for finding in analysis.findings)
    return f"{CAUSE_QUESTION} {cause(analysis)}" if found else ""


def cost(finding: Finding, analysis: Analysis) -> str:
    """What a finding costs, with the step and its share of it: ``30.9 ms of a step of 167.7 ms (18.4 %)``."""
    if not finding.cost_ns or not finding.step_ns:
        return "cannot be told" if finding.cost_ns is None else "no time of its own was measured"
    share = quantities.share(finding.cost_ns / finding.step_ns)
    whole = "a capture" if analysis.window == "capture" else "a step"
    return f"{quantities.ns(finding.cost_ns)} of {whole} of {quantities.ns(finding.step_ns)} ({share})"


def proofs(finding: Finding) -> str:
    """The evidence of a finding, each value with its unit: ``buckets 4, exposed comm 30.9 ms``."""
    return ", ".join(f"{_metric(name)} {quantities.named(name, value)}" for name, value in finding.evidence.items())


def finding_line(finding: Finding, analysis: Analysis) -> str:
    """One finding with its severity, rank, cost and evidence."""
    evidence = proofs(finding)
    text = f"{finding.severity}: {finding.code}{_worst(finding)}{_costs(finding, analysis)}: {finding.message}"
    return text + (f" ({evidence})" if evidence else "")


def not_judged(analysis: Analysis) -> list[str]:
    """What could not be judged, a line for each reason with the causes that it is of."""
    codes: dict[str, list[str]] = {}
    for item in analysis.not_judged:
        codes.setdefault(item.reason, []).append(item.code)
    return [f"{', '.join(names)}: {reason}" for reason, names in codes.items()]


def not_found(analysis: Analysis) -> str:
    """The causes that were judged and not found, "" when there are none."""
    others = {item.code for item in analysis.findings} | {item.code for item in analysis.not_judged}
    return ", ".join(code for code in CAUSES if code not in others)


def _worst(finding: Finding) -> str:
    if finding.rank is None:
        return ""
    return f" on rank {finding.rank}" if len(finding.on_ranks) < 2 else f" on {spelled(finding.on_ranks)}"


def _costs(finding: Finding, analysis: Analysis) -> str:
    return f", up to {cost(finding, analysis)}" if finding.cost_ns else ""


def _metric(name: str) -> str:
    """An evidence name as words: ``exposed_comm_ns`` is exposed comm, ``n_buckets`` buckets."""
    unit = quantities.unit_of(name)
    plain = name.removesuffix(f"_{unit}") if unit != "text" else name
    return plain.removeprefix("n_").replace("_", " ")


def warning_line(warning: Warning, analysis: Analysis) -> str:
    """One warning's message, with its report where there are several."""
    if warning.report is None or len(analysis.reports) < 2:
        return warning.message
    return f"{warning.message} ({analysis.reports[warning.report].path})"


def failure_line(failure: FailureRecord) -> str:
    """One rank that failed, and whether it had to."""
    due = ", as this case must" if failure.is_expected else ""
    return f"rank {failure.rank} failed in step {failure.step}{due}: {failure.error}: {failure.message}"


def whereabouts(row: RankRow, analysis: Analysis) -> str:
    """Where one row comes from: report, process, device, and how the rank was told."""
    report = analysis.reports[row.report].path if row.report < len(analysis.reports) else "?"
    parts = [f"report {report}", f"pid {row.pid}", f"rank from {row.rank_source}" if row.rank is not None else "rank unknown"]
    if row.device_id is not None:
        gpu = "physical GPU unknown" if row.gpu is None else f"GPU {row.gpu}"
        parts.append(f"device {row.device_id}, {gpu}" + (f" ({row.device_name})" if row.device_name else ""))
    steps = "whole capture" if analysis.window == "capture" else counted(row.steps, "complete step")
    return "; ".join([*parts, steps])


def row_name(row: RankRow, analysis: Analysis) -> str:
    """What to call a row in a sentence: ``rank 0``, with process and device where the rank alone does not tell."""
    if row.rank is not None and sum(other.rank == row.rank for other in analysis.ranks) < 2:
        return f"rank {row.rank}"
    place = [f"report {row.report}"] if len(analysis.reports) > 1 else []
    place += [f"pid {row.pid}"] + ([] if row.device_id is None else [f"device {row.device_id}"])
    return f"{'unknown rank' if row.rank is None else f'rank {row.rank}'} ({', '.join(place)})"


def names(rows: Sequence[RankRow], analysis: Analysis) -> str:
    """What to call several rows: ``ranks 0 to 3``; only their number where there are many without a rank of their own."""
    ranks = {row.rank for row in rows if row.rank is not None}
    if len(ranks) == len(rows):
        return spelled(ranks)
    return ", ".join(row_name(row, analysis) for row in rows) if len(rows) <= 4 else f"{len(rows)} rows of the table"


def spelled(ranks: Collection[int]) -> str:
    """Ranks with runs joined: ``rank 0``, ``ranks 0 to 3, 7``."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(texts)}"


def counted(number: int, noun: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number} {noun}{'' if number == 1 else 'es' if noun.endswith('s') else 's'}"


def _ranks(analysis: Analysis) -> str:
    known = {row.rank for row in analysis.ranks if row.rank is not None}
    unknown = {(row.report, row.pid) for row in analysis.ranks if row.rank is None}
    nameless = f"{counted(len(unknown), 'process')} of unknown rank"
    if unknown and not known:
        return nameless
    size = analysis.world_size
    if not known and not unknown:
        return f"no rank{'' if size is None else f' of {size}'} with any work"
    text = f"{counted(len(known), 'rank')}, world size unknown" if size is None else f"{len(known)} of {counted(size, 'rank')}"
    if unknown:
        return f"{text} and {nameless}"
    missing = {*range(size or 0)} - known
    return f"{text} ({spelled(missing)} not in the input)" if missing else text


def _gpus(analysis: Analysis) -> list[str]:
    rows = analysis.ranks
    if analysis.evidence == "host-ranges" or not rows:
        return []
    models = ", ".join(dict.fromkeys(row.device_name for row in rows if row.device_name))
    model = f" ({models})" if models else ""
    if any(row.gpu is None for row in rows):
        return [f"{counted(len(rows), 'device')}{model}, which physical GPUs cannot be told"]
    shared = "time-sliced" if any(row.is_time_sliced for row in rows) else "not time-sliced"
    return [f"{counted(len({row.gpu for row in rows}), 'GPU')}{model}, {shared}"]


def _window(analysis: Analysis) -> str:
    if analysis.window == "capture":
        return "whole capture, no step marks used"
    steps = {row.steps for row in analysis.ranks} or {0}
    least, most = min(steps), max(steps)
    text = counted(most, "complete step") if least == most else f"{least} to {most} complete steps"
    numbers = {row.step for row in analysis.breakdown if row.reason is None}
    if most == 1 and len(numbers) == 1 and None not in numbers:
        text += f" (step {numbers.pop()})"
    left = len({row.step for row in analysis.breakdown if row.reason is not None})
    return f"{text}, {left} left out" if left else text
