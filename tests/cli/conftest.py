"""The command line as the tests of its commands call it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from ddpprof.cli import main


class Run(NamedTuple):
    """What a command line did."""

    status: int
    out: str
    err: str


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Run]]:
    """Runs ``ddpprof ARGUMENTS`` in this process, and puts the signal handlers back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def run(*arguments: object) -> Run:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return Run(int(end.value.code or 0), said.out, said.err)

    yield run
    for number, handler in handlers.items():
        signal.signal(number, handler)
