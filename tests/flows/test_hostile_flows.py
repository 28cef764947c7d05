"""Flows over forged runs and a hostile server end, execute nothing of them, and write nothing outside."""

from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest

from tests import bombs
from tests.hostile import RUN, check_unharmed, forged_runs, server_that, serving, victim_of
from trtops import convert, errors, flows
from trtops.system import activity
from trtops.tracking.memory import MemoryTracker

MODEL = Path("conv_net.onnx")


@pytest.fixture
def hostile_folder(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with victim_of(tmp_path / "victim", template) as folder:
        monkeypatch.setenv("TRTOPS_HOME", str(folder / "mlruns"))
        yield folder


def flows_on(run: str) -> dict[str, Callable[[], object]]:
    """Every flow that reads a run."""
    return {
        "audit": lambda: flows.audit(runs=(run,)),
        "bisect": lambda: flows.bisect(run),
        "bundle": lambda: flows.bundle(run),
        "calibrate": lambda: flows.calibrate(MODEL, data=f"run:{run}"),
        "compare": lambda: flows.compare(f"run:{run}", str(MODEL)),
        "debug_build": lambda: flows.debug_build(resume=run),
        "diff_tactics": lambda: flows.diff_tactics(runs=(run,)),
        "gate": lambda: flows.gate((MODEL,), candidate=run),
        "promote": lambda: flows.promote(run),
        "prove": lambda: flows.prove(run),
        "sensitivity": lambda: flows.sensitivity(MODEL, f"run:{run}"),
    }


def flows_on_store() -> dict[str, Callable[[], object]]:
    """Those that look for runs in the store."""
    return {
        "convert": lambda: flows.convert(MODEL, experiment="Default"),
        "audit": lambda: flows.audit(experiment="Default", rebuild=False),
        "diff_tactics": lambda: flows.diff_tactics(experiment="Default"),
        "nightly": lambda: flows.nightly(Path("models.yaml"), only_new=True),
        "watch": lambda: flows.watch(Path(), settle_seconds=0.0),
        "prune_runs": lambda: flows.prune_runs(older_than_days=0.0),
        "reap": lambda: flows.reap(),
    }


WRITING = {"accuracy", "choose", "evaluate", "precision", "reduce", "triage"}
"""Flows that read no run."""


def run_all(flows: dict[str, Callable[[], object]], hostile_folder: Path) -> list[str]:
    """Call flows; each returns, or raises an error of ours. Returns the names of those that returned."""
    returned = []
    for name, call in flows.items():
        try:
            call()
            returned.append(name)
        except errors.TrtopsError as exc:
            assert str(exc), name
        check_unharmed(hostile_folder, name)
    return returned


def test_no_flow_is_missing() -> None:
    assert {*flows.__all__} == {*flows_on(RUN), *flows_on_store(), *WRITING}


def test_flows_survive_forged_runs(hostile_folder: Path) -> None:
    # The ways of the others are tried by the same operations in tests/cli/test_hostile_store.py.
    campaign = forged_runs(hostile_folder)[1]
    returned = set(run_all(flows_on(campaign), hostile_folder))
    assert returned <= {"audit", "diff_tactics", "gate"}

    Path("models.yaml").write_text("models:\n  - model: conv_net.onnx\n")
    assert {"convert", "nightly", "reap"} <= set(run_all(flows_on_store(), hostile_folder))


def test_flows_survive_a_hostile_server(hostile_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # tests/cli/test_hostile_store.py has the other ways, and the same operations on them.
    with serving(server_that("digest", hostile_folder)) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        assert run_all({name: flows_on(RUN)[name] for name in ("debug_build", "promote")}, hostile_folder) == []
        assert run_all({"convert": flows_on_store()["convert"]}, hostile_folder) == ["convert"]  # its run is spooled


@pytest.mark.usefixtures("children")
@pytest.mark.parametrize(
    "call",
    [flows.convert, lambda model: convert(model, tracker=MemoryTracker())],
    ids=["flow", "Python"],
)
def test_crashing_model_is_an_error(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(activity, "_page", None)
    onnx.save(bombs.overflowing_division(), tmp_path / "bomb.onnx")

    with pytest.raises(errors.WorkerError, match=r"died of signal 8 .* while running inference(.|\n)*\ndiv \(Div\): "):
        call(tmp_path / "bomb.onnx")
