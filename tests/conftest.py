"""What the whole test suite shares: Hypothesis's profile, options, and checks without a process of their own."""

from __future__ import annotations

import os
import signal
from collections import Counter, defaultdict
from collections.abc import Generator, Hashable
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings

from tests.kit.hang_watch import Watch, limit
from tests.kit.sampling import THOROUGH, chosen

# A shell starts its background jobs with Ctrl-C ignored, and what they start inherits that: tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# nohup does the same with SIGHUP.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Tests see searches, not what earlier ones have found; and nothing is left in the cache of whoever runs them.
os.environ["MIRAGE_FORMAL_NO_CACHE"] = "1"

settings.register_profile(
    "ci", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")

#: A file system in memory, where there is one; and the bytes that it must have left. The suite needs about a quarter.
MEMORY = Path("/dev/shm")
ROOM = 1 << 30
#: Cases of one test that coverage sees; and seconds of its process's own time, within each of these cases.
TRACED = 3
TRACED_S = 0.25

#: Deprecations that torch 2.13 meets in its own code: in torch.export, and where Inductor first loads mkldnn.
OF_TORCH = (
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated:FutureWarning",
    "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning",
)


def pytest_configure(config: pytest.Config) -> None:
    """Temporary directories are in memory, where that is possible and nobody has said where they should be.

    Tests write, sync and remove a hundred thousand small files; on a disk that takes a large part of their time.
    """
    config.addinivalue_line("markers", "sampled(of): of its cases one in so many is run; see tests/kit/sampling.py")
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None) and (seconds := limit(config)):
        config.pluginmanager.register(Watch(config, seconds))
    config.addinivalue_line("markers", "no_cover: runs without coverage; it is known where pytest-cov is not installed")
    # What a test builds there it may also load and run.
    if os.access(MEMORY, os.W_OK | os.X_OK) and config.getoption("basetemp") is None:
        found = os.statvfs(MEMORY)
        if found.f_bavail * found.f_frsize > ROOM and not found.f_flag & os.ST_NOEXEC:
            os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this test suite."""
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sample, and mark, what was collected."""
    # Who names a test wants all of its cases.
    if not THOROUGH and not any("::" in argument for argument in config.args):
        _sample(config, items)
    _mark(items)


def _sample(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test that is marked so, leave the cases that ``chosen`` leaves."""
    tests: defaultdict[tuple[str, int], list[pytest.Function]] = defaultdict(list)
    for item in items:
        mark = item.get_closest_marker("sampled")
        if isinstance(item, pytest.Function) and mark is not None:
            tests[item.nodeid.partition("[")[0], mark.args[0]].append(item)
    left_out: set[pytest.Item] = set()
    for (_, of), cases in tests.items():
        left = chosen([(item.nodeid, _values(item)) for item in cases], of)
        left_out |= {item for item in cases if item.nodeid not in left}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _values(item: pytest.Function) -> dict[str, Hashable]:
    """Which value a case has of each parameter, by identity; names of one ``parametrize`` are one parameter.

    Positions are of no use: pytest counts the combinations, not the values.
    """
    given = {name: id(value) for name, value in item.callspec.params.items()}
    found: dict[str, Hashable] = {}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0].replace(",", " ").split() if isinstance(mark.args[0], str) else mark.args[0]
        found["-".join(names)] = tuple(given.pop(name) for name in names)
    return found | given


def _mark(items: list[pytest.Item]) -> None:
    """What runs without tracing, which makes tests half as slow again and searches several times slower.

    That are slow tests, whose code fast tests cover, and of a test with many cases all but the first few, which run
    the same lines. See also ``pytest_runtest_protocol``. In tests of torch, what it says of its own code is no error.
    """
    cases: Counter[tuple[Path, str]] = Counter()
    for item in items:
        if Path(__file__).parent / "torch" in item.path.parents:
            for one in OF_TORCH:
                item.add_marker(pytest.mark.filterwarnings(one))
        test = (item.path, item.nodeid.partition("[")[0])
        cases[test] += 1
        if item.get_closest_marker("slow") is not None or cases[test] > TRACED:
            item.add_marker("no_cover")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """End the first of the two measurements that pytest-cov begins in a worker of pytest-xdist.

    It goes on where the second one pauses, so that every test would be traced, those without coverage as well.
    """
    first = getattr(session.config.pluginmanager.get_plugin("_cov"), "cov_controller", None)
    if first is not None and hasattr(session.config, "workerinput"):
        first.cov.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Nor is what a slow test makes before it begins; pytest-cov leaves out the test's own time only."""
    measuring = getattr(item.config.pluginmanager.get_plugin("_cov"), "cov_controller", None)
    if measuring is None or not measuring.started or item.get_closest_marker("no_cover") is None:
        return (yield)
    measuring.pause()
    try:
        return (yield)
    finally:
        measuring.resume()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Of a test that is traced, coverage sees the beginning: what goes on for long runs the same lines again.

    The time is that of this process alone, so that what is covered does not depend on what else the machine does.
    """
    measuring = getattr(item.config.pluginmanager.get_plugin("_cov"), "cov_controller", None)
    if measuring is None or not measuring.started or item.get_closest_marker("no_cover") is not None:
        return (yield)
    paused = False

    def enough(number: int, frame: FrameType | None) -> None:
        nonlocal paused
        paused = True
        measuring.cov.stop()

    before = signal.signal(signal.SIGVTALRM, enough)
    signal.setitimer(signal.ITIMER_VIRTUAL, TRACED_S)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
        if paused:
            measuring.cov.start()


@pytest.fixture
def check_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ``check`` runs in this process; see ``InProcess``. Every module has checks in their own as well."""
    from mirage_formal.revalidate import check_command
    from tests.kit.runs.tampering import InProcess

    monkeypatch.setattr(check_command, "LimitedCheck", InProcess)


@pytest.fixture
def check_mostly_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """For many checks of one test: see ``MostlyInProcess``."""
    from mirage_formal.revalidate import check_command
    from tests.kit.runs.tampering import MostlyInProcess

    monkeypatch.setattr(check_command, "LimitedCheck", MostlyInProcess())
