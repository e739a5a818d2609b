"""The formal experiment with one call: every case one after another, then the table of what must come out against what did."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from ddpprof import launch, profiling
from ddpprof.claims import Lost, Ran, evaluate, row
from ddpprof.errors import DdpprofError, UsageError
from ddpprof.model import Acceptance, AcceptanceRow
from ddpprof.profiling import Say, Settings, Working
from ddpprof.rundir import RunDir
from ddpprof.workloads import require_torch
from ddpprof.workloads.cases import STUDY, Case, find

FOLDER = Path("runs") / "verify"

LEAST_FACTS = 30
"""Facts about the Reducer that must be checked at least, however many this PyTorch lacks."""


def verify(
    names: Sequence[str],
    settings: Settings,
    *,
    is_fresh: bool = False,
    has_facts: bool = False,
    say: Say = lambda line: None,
    working: Working = lambda title: nullcontext(),
) -> Acceptance:
    """What came of these cases (none named: all), each run into a folder of its own below ``settings.folder``.

    A run that is there already, whole, of the same settings and versions, and shows what it must, is kept unless ``is_fresh``.
    A case that fails is counted as failed, and the next one runs. Raises UsageError for what cannot be asked.
    """
    require_torch()
    cases = [_of_study(name) for name in dict.fromkeys(names or STUDY)]
    folder = settings.folder or FOLDER
    if folder.is_file() or RunDir(folder).is_run():
        raise DdpprofError(f"{folder}: not a folder for several runs", "Choose another place with -o; nothing was changed.")
    runs: list[Ran | Lost] = []
    for number, case in enumerate(cases, 1):
        title = f"[{number}/{len(cases)}] {case.name}"
        runs.append(_run(case, replace(settings, folder=folder / case.name), title, is_fresh, say, working))
    found = evaluate(_with_references(runs, settings, working), settings)
    if has_facts:
        with working("the facts about the DDP Reducer"):
            facts, notes = _facts()
        found = replace(found, rows=(*found.rows, facts), notes=(*found.notes, *notes))
    return found


def _of_study(name: str) -> Case:
    """The case of the study that is called ``name``. Raises UsageError."""
    case = find(name)
    if case.group != "study":
        raise UsageError(f"{name}: not a case of the study", f"Its cases are {', '.join(STUDY)}.")
    return case


def _run(case: Case, settings: Settings, title: str, is_fresh: bool, say: Say, working: Working) -> Ran | Lost:
    """One case, run or found, and a line that says which."""
    started = time.monotonic()
    try:
        outcome = None if is_fresh else profiling.find_outcome(case.name, settings)
        if outcome is not None:
            say(f"{title}: kept, it ran before with these settings and versions (--fresh runs it again)")
            return Ran(case=case, outcome=outcome, is_kept=True)
        outcome = profiling.profile_case(case.name, settings, say=say, working=working)
    except UsageError:
        raise
    except DdpprofError as error:
        say(f"{title}: failed: {error}")
        return Lost(case=case, error=error)
    missed = sum(result.verdict != "pass" for result in outcome.results)
    say(f"{title}: {f'{missed} expectations missed' if missed else 'as it must be'}, {time.monotonic() - started:.0f} s")
    return Ran(case=case, outcome=outcome)


def _with_references(runs: Sequence[Ran | Lost], settings: Settings, working: Working) -> list[Ran | Lost]:
    """The runs, each with what a single process has after each step; cases of one model share their reference."""
    models: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for run in runs:
        if isinstance(run, Ran) and run.case.failure is None:
            models[_model(run.case)].append(run.case)
    references: dict[tuple[object, ...], Sequence[str] | DdpprofError] = {}
    for model, cases in models.items():
        steps = max(case.warmup for case in cases) + settings.iterations + 1
        with working(f"one process on the whole batch: {', '.join(case.name for case in cases)}"):
            try:
                references[model] = reference(cases[0], settings.ranks, settings.seed, steps)
            except DdpprofError as error:
                references[model] = error
    return [replace(run, reference=references.get(_model(run.case), ())) if isinstance(run, Ran) else run for run in runs]


def _model(case: Case) -> tuple[object, ...]:
    """What decides the parameters, data and gradients of a case, whatever DDP is told."""
    return case.parameter_bytes, case.used


def reference(case: Case, ranks: int, seed: int, steps: int) -> list[str]:
    """The hash of all parameters after each step that a single process has on the whole batch. Raises DdpprofError."""
    command = [sys.executable, "-m", "ddpprof.workloads.reference", case.name]
    command += ["--world", str(ranks), "--seed", str(seed), "--steps", str(steps)]
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder)
        finished = launch.run(command, env=launch.environment({}), log_dir=logs)
        if finished.returncode != 0:
            raise launch.explain_failure(finished, RunDir(logs))
        hashes: list[str] = json.loads((logs / "stdout.log").read_text(encoding="utf-8"))
        return hashes


def _facts() -> tuple[AcceptanceRow, list[str]]:
    """The row of the facts about the Reducer, and a note on those that the installed PyTorch lacks."""
    from ddpprof.workloads.facts import check_facts

    what = "what is taken to be true of DDP holds on this PyTorch"
    try:
        results = check_facts()
    except DdpprofError as error:
        return row("Reducer", what, "facts", LEAST_FACTS, 0, [error.message]), []
    wrong = [f"fact {fact.number}: {fact.detail}" for fact in results if fact.status == "fail"]
    lacking = [str(fact.number) for fact in results if fact.status == "skip"]
    checked = len(results) - len(lacking)
    notes = [f"facts that this PyTorch lacks, or does not show: {', '.join(lacking)}"] if lacking else []
    return row("Reducer", what, "facts", max(LEAST_FACTS, checked), checked - len(wrong), wrong), notes
