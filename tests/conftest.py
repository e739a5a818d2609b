"""What all tests share: how hard Hypothesis tries, and where the real captures lie."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

CAPTURES = Path(__file__).parents[1].parent / "shared" / "captures"
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]

settings.register_profile("local", deadline=None, max_examples=60, suppress_health_check=SLOW)
settings.register_profile("ci", parent=settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session")
def captures() -> Path:
    """The folder of real captures with independently computed answers; they are not part of the project."""
    if not CAPTURES.is_dir():
        pytest.skip("no ../shared/captures: real captures are not part of the project")
    return CAPTURES


@pytest.fixture
def report(tmp_path: Path) -> Path:
    """Where a test builds its report."""
    return tmp_path / "report.sqlite"


@pytest.fixture(autouse=True, scope="session")
def interrupts_are_felt() -> None:
    """What runs in the background or under nohup ignores them, and so would every program that a test starts and interrupts."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
