"""A store that others may write to, and a server that means harm: every flow over them ends, runs nothing of it, writes nothing outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hostile import RUN, check_unharmed, forged_runs, server_that, serving, victim_of
from trtops import errors
from trtops.flows import (
    accuracy,
    audit,
    bisect,
    bundle,
    calibrate,
    compare,
    convert,
    debug_build,
    diff_tactics,
    gate,
    nightly,
    noise,
    precision,
    promote,
    prove,
    reduce,
    sensitivity,
    triage,
    watch,
)
from trtops.ops.auditing.config import AuditConfig
from trtops.ops.gate.op import GateConfig
from trtops.tracking.mlflow.embedded import ensure_store

MODEL = Path("conv_net.onnx")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("empty") / "mlruns"
    ensure_store(root)
    return root


@pytest.fixture
def place(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with victim_of(tmp_path, template) as folder:
        monkeypatch.setenv("TRTOPS_HOME", str(folder / "mlruns"))
        yield folder


def flows_on(run: str) -> dict[str, Callable[[], object]]:
    """Every flow that reads a run."""
    return {
        "audit": lambda: audit.audit(AuditConfig(runs=(run,))),
        "bisect": lambda: bisect.bisect(run),
        "bundle": lambda: bundle.bundle(run),
        "calibrate": lambda: calibrate.calibrate(MODEL, f"run:{run}"),
        "compare": lambda: compare.compare(f"run:{run}", str(MODEL)),
        "debug_build": lambda: debug_build.debug_build(resume=run),
        "diff_tactics": lambda: diff_tactics.diff_tactics(runs=(run,)),
        "gate": lambda: gate.gate((MODEL,), GateConfig(candidate=run)),
        "triage": lambda: triage.triage(resume=run),
        "noise": lambda: noise.noise(run),
        "promote": lambda: promote.promote(run),
        "prove": lambda: prove.prove(run),
        "sensitivity": lambda: sensitivity.sensitivity(MODEL, f"run:{run}"),
    }


def flows_on_store() -> dict[str, Callable[[], object]]:
    """The others, which look for runs or write theirs."""
    return {
        "convert": lambda: convert.convert(MODEL, experiment="Default"),
        "audit": lambda: audit.audit(experiment="Default", rebuild=False),
        "diff_tactics": lambda: diff_tactics.diff_tactics(experiment="Default"),
        "nightly": lambda: nightly.nightly(Path("models.yaml"), only_new=True),
        "watch": lambda: watch.watch(Path(), settle_seconds=0.0),
        "precision": lambda: precision.precision(MODEL, experiment="Default"),
        "accuracy": lambda: accuracy.accuracy(MODEL, experiment="Default"),
        "reduce": lambda: reduce.reduce(MODEL, experiment="Default"),
        "triage": lambda: triage.triage(MODEL, experiment="Default"),
    }


def run_all(flows: dict[str, Callable[[], object]], place: Path) -> list[str]:
    """Call flows one after the other; each returns or raises an error of ours. Returns the names of those that returned."""
    returned = []
    for name, call in flows.items():
        try:
            call()
            returned.append(name)
        except errors.TrtopsError as exc:
            assert str(exc), name
        check_unharmed(place, name)
    return returned


def test_no_flow_is_left_out() -> None:
    files = {path.stem for path in Path(convert.__file__).parent.glob("*.py") if "@trtops_flow(" in path.read_text()}
    assert files - {"tasks"} == {*flows_on(RUN), *flows_on_store()}


def test_all_flows_over_a_store_in_which_runs_were_forged(place: Path) -> None:
    # The ways of the others are tried by the same operations in tests/cli/test_hostile_store.py.
    campaign = forged_runs(place)[1]
    returned = set(run_all(flows_on(campaign), place))
    assert returned <= {"audit", "diff_tactics", "gate"}  # whose results say what is wrong

    Path("models.yaml").write_text("models:\n  - model: conv_net.onnx\n")
    assert {"convert", "nightly", "accuracy", "triage"} <= set(run_all(flows_on_store(), place))


@pytest.mark.parametrize("way", ["digest", "endless"])
def test_all_flows_over_a_server_that_means_harm(place: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    with serving(server_that(way, place)) as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        run_all(flows_on(RUN), place)
        run_all({"convert": flows_on_store()["convert"]}, place)
