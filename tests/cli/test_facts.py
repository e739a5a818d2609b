from __future__ import annotations

import json
from dataclasses import asdict

import pytest

pytest.importorskip("torch")

from ddpprof.cli import main
from ddpprof.reducer import FACTS, FactResult, Status
from ddpprof.workloads import facts as checks


def facts(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["facts", *arguments])
    return ended.value.code


@pytest.fixture
def results(monkeypatch):
    """Puts results in the place of the checks: all pass but those given."""

    def put(**others: tuple[Status, str]) -> None:
        found = []
        for fact in FACTS:
            status, detail = others.get(f"_{fact.number}", ("pass", ""))
            found.append(FactResult(**asdict(fact), status=status, detail=detail))
        monkeypatch.setattr(checks, "check_facts", lambda: found)

    return put


def test_facts_that_hold_end_with_0(results, capsys):
    results(_37=("skip", "DDP of torch 2.5.1 has no skip_all_reduce_unused_params"))
    assert facts() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[23] == f"PASS  24  {FACTS[23].text}  [reducer.cpp mark_bucket_ready]"
    assert lines[36].startswith("SKIP  37  With skip_all_reduce_unused_params")
    assert lines[37] == "          DDP of torch 2.5.1 has no skip_all_reduce_unused_params"
    assert lines[-1].endswith(": 37 facts hold, 0 do not, 1 not checked")


def test_a_fact_that_does_not_hold_ends_with_3(results, capsys):
    results(_2=("fail", "expected (8,), saw (4, 4)"))
    assert facts() == 3
    out = capsys.readouterr().out
    assert "FAIL   2  A tensor is never split" in out
    assert "\n          expected (8,), saw (4, 4)\n" in out
    assert out.endswith(": 37 facts hold, 1 do not, 0 not checked\n")


def test_json_has_the_facts_with_their_results(results, capsys):
    results(_2=("fail", "why"))
    assert facts("--format", "json") == 3
    found = json.loads(capsys.readouterr().out)
    assert found["facts"][1] == {**asdict(FACTS[1]), "status": "fail", "detail": "why"}
    assert len(found["facts"]) == 38
    assert found["torch_version"]
