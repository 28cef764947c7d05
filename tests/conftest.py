"""Shared by all tests: no tracking or Prefect setting of the machine reaches them, and GPU tests get a GPU."""

import functools
import gc
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from trtops.next_step import NextStep
from trtops.system.activity import Page
from trtops.system.locks import locked

# How long an example takes, and how long it takes to draw one, is the machine's affair.
settings.register_profile("trtops", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trtops")

MLFLOW_VARIABLES = ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID")
for name in (*MLFLOW_VARIABLES, "PREFECT_API_URL", "TRTOPS_HOME"):
    os.environ.pop(name, None)

# Threads of OpenBLAS spin for a tenth of a second in each of the hundreds of processes that tests start.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "16")
# Tests run in as many processes as there are cores: a second thread for a product of matrices only waits.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Scripts start background processes with SIGINT ignored, and nohup ignores SIGHUP. Child processes of tests would
# inherit that, and tests that interrupt them would wait for ever.
for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# Collection imports all of MLflow and Prefect, and leaves nothing to collect.
gc.disable()

# A process that its parent watches starts no child for models that are new to it, which takes a second.
Page().publish_here()

ROOT = Path(__file__).resolve().parents[1]
_LONGEST = "the campaign on a GPU"


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a run share, for what takes seconds to make."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def prefect_database(shared_folder: Path) -> Path:
    """A home of Prefect with its database: migrating one takes ten seconds."""
    home = shared_folder / "prefect"
    with locked(f"{home}.lock"):
        if not (home / "ready").exists():
            command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
            subprocess.run(command, env={**os.environ, "PREFECT_HOME": str(home)}, check=True, capture_output=True)
            (home / "ready").touch()
    return home


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Fail the test that leaves a variable of MLflow set, as `mlflow.set_tracking_uri` does."""
    yield
    remaining = {name: os.environ.pop(name) for name in MLFLOW_VARIABLES if name in os.environ}
    assert not remaining, "left for the tests that follow"


@pytest.fixture(scope="session", autouse=True)
def copied_stores(shared_folder: Path) -> None:
    """Make new embedded stores by copying the first one, except in tests of stores: making one takes a second."""
    from trtops.tracking.location import Store
    from trtops.tracking.mlflow import embedded

    # Nothing here survives a power failure, so SQLite need not wait for the disk at each commit.
    sqlalchemy = importlib.import_module("sqlalchemy")
    sqlalchemy.event.listen(
        sqlalchemy.engine.Engine,
        "connect",
        lambda connection, _: (
            isinstance(connection, sqlite3.Connection) and connection.execute("PRAGMA synchronous = OFF")
        ),
    )
    create, first = embedded._create_store, Store(database=shared_folder / "first" / "mlflow.db")

    def copy(store: Store) -> None:
        folder = next(folder for folder in (store.root, *store.root.parents) if folder.exists())
        in_tracking = os.environ.get("PYTEST_CURRENT_TEST", "").startswith("tests/tracking/")
        if in_tracking or not os.access(folder, os.W_OK):
            return create(store)
        with locked(f"{first.root}.lock"):
            if not first.database.exists():
                first.root.mkdir()
                create(first)
        utils = importlib.import_module("mlflow.store.db.utils")  # which reads all its migrations for each store
        if not hasattr(utils._get_latest_schema_revision, "cache_info"):
            utils._get_latest_schema_revision = functools.cache(utils._get_latest_schema_revision)
        with locked(store.root / ".init.lock"):
            if not store.database.exists():
                building = store.root / ".copy"
                shutil.copyfile(first.database, building)
                with closing(sqlite3.connect(building)) as database, database:
                    database.execute("UPDATE experiments SET artifact_location = ?", (f"{store.artifacts}/0",))
                building.rename(store.database)

    embedded._create_store = copy


@pytest.fixture(scope="session", autouse=True)
def calls_in_process() -> None:
    """Run the calls of workers in the test's process where tests/children.py lists the folder."""
    from tests.children import run_calls_here

    if importlib.util.find_spec("tensorrt") is None:
        run_calls_here()


@pytest.fixture(scope="session", autouse=True)
def sessions_do_not_spin() -> None:
    """Let threads of ONNX Runtime sleep at once: tests run in more processes than there are cores."""
    if importlib.util.find_spec("onnxruntime") is None:
        return
    ort = importlib.import_module("onnxruntime")

    class SessionOptions(ort.SessionOptions):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.add_session_config_entry("session.intra_op.allow_spinning", "0")

    ort.SessionOptions = SessionOptions


@pytest.fixture(scope="session", autouse=True)
def facts_read_once() -> None:
    """Read the commit of a working folder and the releases of packages once: each build states them several times."""
    from trtops.backend import environment

    git_commit = environment.git_commit
    commit_of = functools.cache(git_commit)
    environment.git_commit = lambda folder=None: commit_of(os.getcwd()) if folder is None else git_commit(folder)
    importlib.metadata.version = functools.cache(importlib.metadata.version)


@pytest.fixture(scope="session", autouse=True)
def graphs_optimized_once() -> None:
    """Keep the digests of optimized graphs for later builds, except in tests of builds: each asks for thirty."""
    from trtops.backend.onnxrt.search import Search
    from trtops.backend.onnxrt.tactics import Candidate

    known: dict[str, str] = {}
    optimize = Search._signature

    def signature(search: Search, candidate: Candidate) -> str | None:
        if os.environ.get("PYTEST_CURRENT_TEST", "").startswith("tests/backend/"):
            return optimize(search, candidate)
        key = search._key(candidate.id)
        if key in known and candidate.id not in search.avoid:
            search.cache.graphs.setdefault(key, known[key])
        answer = optimize(search, candidate)
        if answer is not None:
            known[key] = answer
        return answer

    Search._signature = signature  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def short_visits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time candidates for an eighth of the usual time, except in tests of the timing."""
    if "tests/backend/onnxrt/" not in request.node.nodeid:
        monkeypatch.setattr("trtops.backend.onnxrt.measure._VISIT_SECONDS", 0.0005)


@pytest.fixture(autouse=True)
def next_steps_are_commands(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each command that is proposed during a test is one that the command line takes, with each option once."""
    proposed: list[list[str]] = []
    spell = NextStep.words

    def words(step: NextStep) -> list[str]:
        proposed.append(spell(step))
        return proposed[-1]

    monkeypatch.setattr(NextStep, "words", words)
    yield
    for line in proposed:
        check_proposed(tuple(line))


@functools.cache
def check_proposed(line: tuple[str, ...]) -> None:
    """Parse a command line as its command does. Options for profiles may be repeated, once for each profile."""
    from trtops.cli.command_line import load
    from trtops.cli.main import find_command

    path, words = find_command(list(line[1:]))
    try:
        parser_of(path, load(path)).parse(words)
    except SystemExit:
        raise AssertionError(f"This is proposed and cannot be parsed: {shlex.join(line)}") from None
    options = [word for word in words if word.startswith("--") and not word.startswith("--trt-")]
    assert len(options) == len(set(options)), f"An option is repeated: {shlex.join(line)}"


@functools.cache
def parser_of(path: tuple[str, ...], command: Any) -> Any:
    """The parser of a command, made once for all tests."""
    from trtops.cli import command_line

    return command_line.parser_of(path, command)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers start child processes during the test."""
    monkeypatch.setenv("TRTOPS_TEST_CHILDREN", "1")


@pytest.fixture(scope="session")
def template(shared_folder: Path) -> Path:
    """The root of an empty embedded store; making one takes seconds, copying it milliseconds."""
    from trtops.tracking.mlflow import MlflowTracker

    root = shared_folder / "template" / "mlruns"
    with locked(f"{root.parent}.lock"):
        if not root.exists():
            MlflowTracker(root).log._make()
    return root


@pytest.fixture(scope="session")
def digits(shared_folder: Path) -> Any:
    """The demo's model and images: fitting the model takes seconds."""
    from examples.digits import Digits, make_digits

    folder = shared_folder / "digits"
    names = ("digits.onnx", "held_out_images.npz", "held_out_labels.npy", "calibration_images.npz")
    with locked(f"{folder}.lock"):
        if not folder.exists():
            make_digits(folder)
    model, images, labels, calibration = (folder / name for name in names)
    return Digits(model=model, images=images, labels=labels, calibration=calibration)


@pytest.fixture
def rtx(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-RTX stands in for TensorRT during the test: it parses and builds without a GPU."""
    bindings = importlib.util.find_spec("tensorrt_rtx") or importlib.util.find_spec("tensorrt_rtx_bindings")
    libraries = importlib.util.find_spec("tensorrt_rtx") or importlib.util.find_spec("onnxruntime_ep_nv_tensorrt_rtx")
    if bindings is None or libraries is None:
        pytest.skip("needs tensorrt-rtx-cu13-bindings and onnxruntime-ep-nv-tensorrt-rtx-cu13 (Linux, x86-64)")
    if importlib.util.find_spec("tensorrt") is not None:
        pytest.skip("TensorRT is installed, whose bindings do not live in one process with those of TensorRT-RTX")
    monkeypatch.setenv("TRTOPS_USE_TENSORRT_RTX", "1")  # for child processes
    monkeypatch.setattr("trtops.config.USE_TENSORRT_RTX", True)


@pytest.fixture(scope="module")
def tracker() -> Any:
    """A store in memory that the tests of a module share."""
    from trtops.tracking.memory import MemoryTracker

    return MemoryTracker()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run here, and put what takes longest first."""
    _skip_without_gpus(items)
    sizes = Counter(together(item.nodeid) for item in items)

    def place(item: pytest.Item) -> tuple[bool, bool, int]:
        company = together(item.nodeid)
        return company != _LONGEST, "campaign_gpu" not in item.nodeid, -sizes[company]

    items.sort(key=place)


def pytest_collection_finish() -> None:
    """Leave what was imported out of garbage collections: walking through it took a fifth of the tests' time."""
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    gc.enable()


def _skip_without_gpus(items: list[pytest.Item]) -> None:
    """Skip what needs GPUs where there are too few, unless ``TRTOPS_REQUIRE_GPU=1`` says that there have to be.

    TensorRT 8.6 warns of calls that later releases no longer have.
    """
    for marker, library, needed in (("gpu", "TensorRT", 1), ("multi_gpu", "TensorRT", 2), ("gpu_ort", "CUDA", 1)):
        variable = "TRTOPS_REQUIRE_GPU_ORT" if marker == "gpu_ort" else "TRTOPS_REQUIRE_GPU"
        marked = [item for item in items if item.get_closest_marker(marker)]
        for item in marked:
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
        if os.environ.get(variable) != "1" and marked and _gpus(library) < needed:
            for item in marked:
                reason = f"needs {library} and {needed} GPU(s); {variable}=1 makes this an error"
                item.add_marker(pytest.mark.skip(reason=reason))


def _gpus(library: str) -> int:
    from trtops.backend.trt.library import memory

    if library == "TensorRT":
        return memory.device_count() if importlib.util.find_spec("tensorrt") is not None else 0
    import onnxruntime as ort

    return memory.device_count() if "CUDAExecutionProvider" in ort.get_available_providers() else 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give those tests to one process that share what takes seconds to make."""
    from tests.scheduling import Together  # only where tests run in several processes is pytest-xdist needed

    return Together(config, log, together)


def together(nodeid: str) -> str:
    """The group of tests that run in the same process.

    Flows share a Prefect server, and tests of a file with a module fixture share what it makes. The GPU test that
    takes ten minutes has a few short ones with it: a process with only one test left waits for more.
    """
    file, _, test = nodeid.partition("::")
    if file.startswith("tests/flows/"):
        return "flows"
    if "gpu" in file:
        if "campaign" in file or "checks" in file:
            return _LONGEST
        return f"{file} {test.partition('[')[2][:3]}" if "seeds" in file else file
    return file if _has_module_fixture(file) else nodeid


@functools.cache
def _has_module_fixture(file: str) -> bool:
    return 'scope="module"' in Path(ROOT, file).read_text(encoding="utf-8")
