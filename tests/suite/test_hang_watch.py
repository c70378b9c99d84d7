"""A run of tests in which processes wait for each other ends, and says what they were at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.hang_watch import limit
from tests.kit.paths import REPOSITORY
from tests.kit.processes import HUNG_S

CONFTEST = """
from tests.kit.hang_watch import Watch

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Watch(config, {limit_s}))
"""
TESTS = """
import time
import pytest

@pytest.mark.parametrize("n", range(6))
def test_it(n):
    time.sleep({nap_s} if n == 4 else 0)
"""


def ran(root: Path, limit_s: float, nap_s: float) -> subprocess.CompletedProcess[str]:
    (root / "pytest.ini").write_text("[pytest]\n")
    (root / "conftest.py").write_text(CONFTEST.format(limit_s=limit_s))
    (root / "test_file.py").write_text(TESTS.format(nap_s=nap_s))
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist=worksteal", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=HUNG_S)


def test_who_waits_for_ever_is_named(tmp_path: Path) -> None:
    done = ran(tmp_path, 4.0, HUNG_S)
    assert done.returncode == 1
    assert "no test has ended for 4 s" in done.stderr
    assert "test_file.py::test_it[4]" in done.stderr
    assert "asked to give tests back: None" in done.stderr


def test_what_only_takes_a_while_goes_on(tmp_path: Path) -> None:
    done = ran(tmp_path, 60.0, 1.0)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "6 passed" in done.stdout


def test_it_lets_a_test_take_its_time(pytestconfig: pytest.Config) -> None:
    assert limit(pytestconfig) > float(pytestconfig.getini("faulthandler_timeout")) > 0
