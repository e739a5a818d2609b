"""The parts of docs/ that are ddpprof/model.py and reducer.py in other words; ``python tests/generate_docs.py`` writes them."""

from __future__ import annotations

import re
from pathlib import Path

from ddpprof import model
from ddpprof.analysis.rules import RULES
from ddpprof.model import columns
from ddpprof.reducer import FACTS

ROOT = Path(__file__).resolve().parents[1]
DEFINITIONS = ROOT / "docs" / "definitions.md"
SCHEMA = ROOT / "docs" / "schema.md"
REDUCER = ROOT / "docs" / "reducer.md"
DIAGNOSE = ROOT / "docs" / "diagnose.md"
_SPAN = re.compile(r"(<!-- (?:metrics|facts|causes): .*? -->\n).*?(<!-- end -->)", re.DOTALL)

TABLES = {
    "reports": (model.ReportInfo, "where the numbers come from"),
    "ranks": (model.RankRow, "a row a (report, process, device): medians over its complete steps"),
    "breakdown": (model.StepRow, "a row a step of each of them"),
    "buckets": (model.BucketRow, "a row a communication interval"),
    "focus.ranks": (model.FocusRow, "the same question for the compute that `--compute` names"),
    "kinds": (model.KindRow, "`--show-kinds`: what each name was taken for"),
    "across.ranks": (
        model.AcrossRank,
        "a row a rank with communication, held against the others. Beside them stand `clock`, `uncertainty_ns` (how far two "
        "ranks' clocks may be apart), `transfer_ns` (the transfer estimates of a step together, median) and `refused` (why "
        "collectives were not all paired)",
    ),
    "across.collectives": (
        model.CollectiveRow,
        "a row a collective, where `buckets` lists them; lists are in the order of `across.ranks`",
    ),
    "findings": (
        model.Finding,
        "what holds the step back, the one to act on first; a cause is explained in [diagnose.md](diagnose.md)",
    ),
    "findings.spans": (model.Span, "where to look at a finding"),
    "not_judged": (model.NotJudged, "the causes that the input does not let be judged"),
    "timings": (model.TimingRow, "a row a phase of each rank's unprofiled iterations, of a run folder"),
}
VERIFY = {"rows": model.AcceptanceRow, "clocks": model.ClockRow, "granularity": model.Comparison}
SWEEP = {"rows": model.CapRow, "rows.timing": model.Timing}
PREDICT = {"rows": model.CapPrediction, "rows.ranks": model.RankPrediction, "cost": model.TransferCost}
HISTORY = {"runs": model.KeptRun, "runs.ranks": model.KeptRank}
RECORDS = dict(model.RECORD_TABLES)


def definitions() -> str:
    """docs/definitions.md with its table of metrics as declared."""
    rows = [f"| `{c.name}` | {_cell(c.text)} | {c.unit} | {c.better or ''} |" for c in columns(model.Metrics)]
    table = "\n".join(["| metric | definition | unit | better |", "|---|---|---|---|", *rows])
    return _SPAN.sub(lambda match: f"{match[1]}{table}\n{match[2]}", DEFINITIONS.read_text(encoding="utf-8"))


def reducer() -> str:
    """docs/reducer.md with its table of facts as ``ddpprof facts`` checks them."""
    rows = [f"| {fact.number} | {_cell(fact.text)} | `{fact.source}` |" for fact in FACTS]
    table = "\n".join(["| # | fact | source |", "|---|---|---|", *rows])
    return _SPAN.sub(lambda match: f"{match[1]}{table}\n{match[2]}", REDUCER.read_text(encoding="utf-8"))


def diagnose() -> str:
    """docs/diagnose.md with its table of causes as ``analysis.diagnose`` judges them."""
    rows = [
        f"| `{rule.code}` | {_cell(rule.needs)} | {_cell(rule.measures)} | {f'{rule.percent} %' if rule.percent else '-'} "
        f"| {_cell(rule.advice) or 'see below'} |"
        for rule in RULES
    ]
    table = "\n".join(["| cause | needs | measures | of the step | what to try |", "|---|---|---|---|---|", *rows])
    return _SPAN.sub(lambda match: f"{match[1]}{table}\n{match[2]}", DIAGNOSE.read_text(encoding="utf-8"))


def schema() -> str:
    """docs/schema.md: every table of the JSON document, the warning codes, the record lines."""
    parts = [
        "# Schema\n\nGenerated from `ddpprof/model.py` by `python tests/generate_docs.py`.\n\n"
        f"`ddpprof analyze --format json` writes `format_version` {model.FORMAT_VERSION}: keys are only added within a "
        "version. Times are whole nanoseconds; what is undefined is `null`. `--format csv` writes one of the tables.\n\n"
        "`ddpprof diagnose --format json` has `reports`, `findings` and `not_judged` of it. What the metrics mean is in "
        "[definitions.md](definitions.md)."
    ]
    for name, (table, text) in TABLES.items():
        parts.append(f"## `{name}`\n\n{text[0].upper()}{text[1:]}.\n\n{_table(table)}")
    codes = [f"| `{code}` | {text} |" for code, text in model.WARNING_CODES.items()]
    parts.append("## `warnings`\n\n" + "\n".join(["| code | meaning |", "|---|---|", *codes]))
    parts.append("## `ddpprof verify --format json`\n\n`timings` are those of the jobs, with the columns above.")
    parts += [f"### `{name}`\n\n{_table(table)}" for name, table in VERIFY.items()]
    parts.append("## `ddpprof sweep --format json`")
    parts += [f"### `{name}`\n\n{_table(table)}" for name, table in SWEEP.items()]
    parts.append("## `ddpprof predict --format json`\n\n`measured` has the columns of `rows.timing` above.")
    parts += [f"### `{name}`\n\n{_table(table)}" for name, table in PREDICT.items()]
    parts.append("## `ddpprof history --format json`\n\n`runs.timing` is as above; the results database has these columns.")
    parts += [f"### `{name}`\n\n{_table(table)}" for name, table in HISTORY.items()]
    parts.append("## Record lines\n\n`records.rankN.jsonl` of a run folder: one JSON object a line, `table` names its kind.")
    parts += [f"### `{name}`\n\n{_table(table)}" for name, table in RECORDS.items()]
    return "\n\n".join(parts) + "\n"


def _table(table: type) -> str:
    rows = [f"| `{c.name}` | {c.unit} | {_cell(c.text)} |" for c in columns(table)]
    return "\n".join(["| column | unit | meaning |", "|---|---|---|", *rows])


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|")


if __name__ == "__main__":
    DEFINITIONS.write_text(definitions(), encoding="utf-8")
    SCHEMA.write_text(schema(), encoding="utf-8")
    REDUCER.write_text(reducer(), encoding="utf-8")
    DIAGNOSE.write_text(diagnose(), encoding="utf-8")
