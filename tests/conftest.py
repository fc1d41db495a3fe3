"""Fixtures known to all tests, and how a run is distributed and reported.

No fixture starts anything before a test asks for it.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Generator, Iterator

import pytest
from xdist.workermanage import WorkerController, parse_tx_spec_config

from tests.support.clusters import (
    cluster_pair,
    clusters_directory,
    destination_cluster,
    empty_destination,
    make_cluster,
    make_module_cluster,
    reaped_session,
    source_cluster,
)
from tests.support.file_scheduling import (
    COMPILED,
    DURATIONS_FILE,
    LongestFileFirst,
    Measured,
    file_of,
    files_for_worker,
    known_durations,
    record_durations,
)
from tests.support.shared_clusters import (
    busy_cluster,
    forgetful,
    guarded_cluster,
    guarded_pair,
    installed_logs,
    lenient_cluster,
    mortal_cluster,
    passing_destination,
    started_guarded_cluster,
    started_guarded_source,
    started_lenient_cluster,
    started_mortal_cluster,
    started_passing_destination,
    started_three_brokers,
    started_tiered_pair,
    three_brokers,
    tiered_pair,
)
from tests.support.spark_standalone import standalone_spark
from tests.support.trust import trusted

__all__ = [
    "busy_cluster",
    "cluster_pair",
    "clusters_directory",
    "destination_cluster",
    "empty_destination",
    "forgetful",
    "guarded_cluster",
    "guarded_pair",
    "installed_logs",
    "lenient_cluster",
    "make_cluster",
    "make_module_cluster",
    "mortal_cluster",
    "passing_destination",
    "reaped_session",
    "source_cluster",
    "standalone_spark",
    "started_guarded_cluster",
    "started_guarded_source",
    "started_lenient_cluster",
    "started_mortal_cluster",
    "started_passing_destination",
    "started_three_brokers",
    "started_tiered_pair",
    "three_brokers",
    "tiered_pair",
    "trusted",
]

_IS_FRESH_CLONE = pytest.StashKey[bool]()
#: Clusters that tests of many files share; starting one takes seconds.
_SHARED_CLUSTERS = {"busy_cluster", "forgetful", *(name for name in __all__ if name.startswith("started_"))}


@pytest.fixture(autouse=True)
def note_shared_clusters(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have the report of a test tell which shared clusters it used."""
    yield
    used = sorted(_SHARED_CLUSTERS.intersection(request.fixturenames))
    request.node.user_properties.append(("clusters", used))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-durations", action="store_true", help=f"write {DURATIONS_FILE.name} with what was measured"
    )


def pytest_configure(config: pytest.Config) -> None:
    # else each of the many processes that tests start would compile again what it imports
    sys.dont_write_bytecode = False
    # a run in the background, or under nohup, ignores these, and so would all that it starts
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    worker = getattr(config, "workerinput", None)
    if worker is None:
        config.pluginmanager.register(RunReport(config), "kmirror-run-report")
        config.stash[_IS_FRESH_CLONE] = not COMPILED.exists()
    elif config.args_source is pytest.Config.ArgsSource.TESTPATHS and worker["is_fresh_clone"]:
        config.args = files_for_worker(worker["workerid"], worker["workercount"])
        config.pluginmanager.register(InOneOrder())


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected, nor ever again among them: they are kept to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config) -> LongestFileFirst:
    return LongestFileFirst(config, len(parse_tx_spec_config(config)), known_durations())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    # processes that looked for themselves would differ: the first to collect compiles
    node.workerinput["is_fresh_clone"] = node.config.stash[_IS_FRESH_CLONE]


class InOneOrder:
    """Put the tests into the order of their files, in whatever order these were collected."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: file_of(item.nodeid))


class RunReport:
    """Name the tests that were tried again at the end of a run, and keep how long each file took."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: dict[str, float] = defaultdict(float)
        self._clusters: dict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = file_of(report.nodeid)
        self._seconds[file] += report.duration
        for name, value in report.user_properties:
            if name == "clusters" and isinstance(value, list):
                self._clusters[file].update(value)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        retried = sorted({report.nodeid for report in terminalreporter.stats.get("rerun", ())})
        terminalreporter.write_line(": ".join([f"flaky: {len(retried)}", *([", ".join(retried)] if retried else [])]))

    def pytest_sessionfinish(self) -> None:
        if self._config.getoption("record_durations"):
            measured = {f: Measured(s, tuple(sorted(self._clusters[f]))) for f, s in self._seconds.items()}
            record_durations(measured)
