"""Commands that remember, and commands that read what was remembered, on a real store."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import trtops
from tests import models
from tests.stores import copy_store
from trtops.cli.main import main
from trtops.comparator import RunResults
from trtops.errors import RunNotFoundError
from trtops.json import save_json
from trtops.tracking.base import run_id_of, tracked
from trtops.tracking.schema import Artifact, Tag
from trtops.tracking.store import open_tracker

EXPERIMENT = "nets"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run of each tracked command, and the folder they ran in."""
    folder = tmp_path_factory.mktemp("tracked")
    models.conv_net().fixed().write(folder)
    models.transformer().fixed().write(folder)
    save_json([{"image": models.random(2, 3, 8, 8, seed=n)} for n in range(3)], str(folder / "data.json"))
    loose = "--atol 1e-3 --rtol 1e-3"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in (
            f"convert conv_net.onnx --convert-to ort --experiment {EXPERIMENT} -o kept.ort",
            f"convert transformer.onnx --convert-to ort --experiment {EXPERIMENT} {loose}",
            f"run conv_net.onnx --onnxrt --onnx --experiment {EXPERIMENT} {loose}",
            f"debug reduce conv_net.onnx --onnxrt --experiment {EXPERIMENT} {loose}",
            f"debug build conv_net.onnx --onnxrt --until 2 --experiment campaign {loose}",
            f"debug precision transformer.onnx --bf16 --experiment {EXPERIMENT} --atol 1 --rtol 1",
            f"debug accuracy conv_net.onnx --onnxrt --experiment {EXPERIMENT} {loose}",
        ):
            assert main(line.split()) == 0, line
        calibrating = f"calibrate conv_net.onnx --load-inputs data.json --experiment {EXPERIMENT}"
        assert main(calibrating.split()) in (0, 1)
    return folder


@pytest.fixture
def run(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs a line in the store's folder; gives its code and what it printed."""
    monkeypatch.chdir(home)

    def call(line: str) -> tuple[int, str]:
        capsys.readouterr()
        code = main(line.split())
        return code, capsys.readouterr().out

    return call


@pytest.fixture
def ids(run: Callable[..., tuple[int, str]]) -> dict[str, list[str]]:
    """Ids of runs by kind, newest first."""
    ids_by_kind: dict[str, list[str]] = {}
    for row in json.loads(run("runs list --json --limit 500")[1]):
        ids_by_kind.setdefault(row["kind"], []).append(row["id"])
    return ids_by_kind


def test_runs_are_listed(run):
    code, text = run(f"runs list --experiment {EXPERIMENT} --kind reduce --verdict good")
    assert code == 0 and "conv_net reduce" in text
    assert run("runs list --kind reduce --verdict bad")[1].strip() == "No such runs."
    assert run("runs list --kind reduced")[0] == 2
    assert run(f"runs list --experiment {EXPERIMENT}s")[0] == 3
    with pytest.raises(RunNotFoundError, match=f"Did you mean '{EXPERIMENT}'"):
        trtops.runs(f"{EXPERIMENT}s")


def test_engines_are_listed_by_a_metric(run):
    best = json.loads(run("runs list --best latency/p50_ms --json")[1])
    assert best and [row["value"] for row in best] == sorted(row["value"] for row in best)
    assert len({row["name"] for row in best}) == len(best) and "iteration" not in {row["kind"] for row in best}
    assert "latency/p50_ms" in run("runs list --best latency/p50_ms --above error/max_abs=-1 -n 1")[1]
    assert run("runs list --accepted --kernel none")[1].strip() == "No such runs."
    assert run("runs list --best latency/p50_ms --kind build")[0] == run("runs list --above error/max_abs")[0] + 1 == 3


def test_tags_are_text(run, tmp_path):
    tag, name, value = "image=registry/trt:8.6", "image", "registry/trt:8.6"
    with tracked(open_tracker(tmp_path), "tagged", tag, kind="build", tags={name: value}) as tagged_run:
        tagged_run.set_tags({Tag.VERDICT: "good"})

    listed = json.loads(run(f"runs list --store {tmp_path} --tag {tag} --json")[1])
    audited = json.loads(run(f"runs audit --store {tmp_path} --tag {tag} --no-rebuild --json")[1])

    assert [row["id"] for row in listed] == [row["id"] for row in audited["runs"]] == [tagged_run.id]
    assert run(f"runs audit --tag {name}:{value}")[0] == run(f"runs evaluate --tag {name} --atol 1")[0] == 2


@pytest.mark.parametrize("command", ["convert nosuch.onnx --convert-to ort", "choose nosuch.onnx"])
def test_a_mistyped_model_makes_no_store(command, run, tmp_path):
    assert run(f"{command} --store {tmp_path / 'new'}")[0] == 3
    assert not (tmp_path / "new").exists()


def test_runs_are_named_by_their_ids(run, ids, caplog):
    first, second = ids["build"][-2:]
    campaign = ids["debug_build"][-1]

    for run_name in (f"run:{first}", first[:8], first[:31].upper()):
        code, text = run(f"runs show {run_name}")
        assert code == 0 and f"Run {first}" in text and "incomplete" not in text
        assert "engine/engine.ort" in text and "build/seconds" in text
    assert run(f"inspect run run:{first} --json")[0] == 0
    code, text = run(f"runs audit {first} {second} --no-rebuild --json")
    assert code == 0 and [row["id"] for row in json.loads(text)["runs"]] == [first, second]
    code, brief = run(f"runs compare {first} run:{second}")
    assert code == 0 and len(brief.splitlines()) <= 12 and "verdict" in brief.splitlines()[2]
    code, text = run(f"runs compare {first} run:{second} -v")
    names = [line.split()[0] for line in text.splitlines() if line.strip()]
    assert code == 0 and text.split()[:2] == [first[:8], second[:8]]
    assert names[2] == "verdict" and "build/seconds" in names and not {"precision", "spec_sha256"} & {*names}
    assert run(f"runs compare {first} {first}")[1].strip() == "Nothing differs."
    for filters in ("", "--best latency/p50_ms"):
        assert run(f"runs list --experiment nosuch {filters}")[0] == 3
    assert run(f"compare run:{first} run:{second} run:{first} --html page.html")[0] == 0
    assert first[:8] in Path("page.html").read_text("utf-8")
    assert run(f"compare run:{first} run:{second} run:{first}")[0] == 2
    children = json.loads(run(f"runs list --parent {campaign} --json")[1])
    assert len(children) >= 2 and {child["parent"] for child in children} == {campaign}
    calibrated = run(f"inspect calibration run:{ids['calibrate'][0]}")
    assert calibrated[0] == 0 and "tensors by" in calibrated[1]
    for run_name, message in (
        ("8d6", "32 hexadecimal digits"),
        ("0" * 8, "no id of a run begins"),
        ("0" * 32, "has no run with the id"),
    ):
        assert run(f"runs show {run_name}")[0] == 3
        assert message in caplog.text


def test_ambiguous_run_ids_are_refused():
    runs = [SimpleNamespace(id=f"8d6e3f1a{n:024}") for n in range(2)]
    with pytest.raises(RunNotFoundError, match="the ids of several runs begin with it"):
        run_id_of("8d6e3f1a", SimpleNamespace(find=lambda **_: runs))


def test_stored_comparisons_are_reevaluated(run, ids):
    run_ids = " ".join(ids["build"][-2:])

    code, text = run(f"runs evaluate {run_ids} --atol 1 --rtol 1 --json")
    assert code == 0 and [evaluation["id"] for evaluation in json.loads(text)] == run_ids.split()
    # The fastest engine may equal the model bit for bit, so a limit is given that nothing meets.
    code, text = run(f"runs evaluate {run_ids} --cosine-similarity-threshold 1.5")
    assert code == 1 and "bad (was good)" in text
    assert run(f"runs evaluate {run_ids}")[0] == 2


def test_audit_finds_a_damaged_run(run, ids, home, tmp_path):
    copy = tmp_path / "mlruns"
    copy_store(home / "mlruns", copy)
    next(copy.rglob(f"{ids['build'][0]}/artifacts/build.log")).write_text("changed")

    code, text = run(f"runs audit --experiment {EXPERIMENT} --no-rebuild")
    assert code == 0, text
    code, text = run(f"runs audit {ids['build'][0]} --no-rebuild --store {copy}")
    assert code == 1 and "incomplete" in text


def test_a_good_run_is_promoted_and_resolved(run, ids, home):
    assert run("runs resolve transformer.onnx")[0] == 1
    build = next(i for i in reversed(ids["build"]) if re.search(r" FP32 ort .*conv_net in", run(f"runs show {i}")[1]))

    assert run(f"runs promote {build}")[0] == 0
    code, text = run("runs resolve conv_net.onnx -o accepted.ort")
    assert code == 0 and "Version 1" in text, text
    assert run("inspect model accepted.ort")[0] == 0


def test_parts_of_a_recorded_build_are_written(home, run, caplog):
    line = "convert conv_net.onnx --convert-to ort --experiment files --rebuild --atol 1e-3 --rtol 1e-3"
    assert run(f"{line} --save-tactics kept.json --timing-cache kept.cache")[0] == 0

    assert "layers" in run("inspect tactics kept.json")[1]
    first = (home / "kept.cache").read_bytes()
    assert first and not (home / "conv_net.ort").exists()
    assert run(f"{line} --load-tactics kept.json --timing-cache kept.cache --calibration-cache none.cache")[0] == 0
    assert "none.cache is not written: the build left no calibration cache" in caplog.text


def test_a_run_is_compared_with_a_model(run, ids):
    build = ids["build"][-1]

    code, text = run(f"compare run:{build} conv_net.onnx --atol 1e-3 --rtol 1e-3 --experiment e --json")
    assert code == 0
    shown = json.loads(run(f"runs show {json.loads(text)['run_id']} --json")[1])
    assert shown["params"]["actual"] == f"run:{build}" and build in shown["name"]
    assert run("convert conv_net.onnx --experiment e --strip-plan -o x.engine")[0] == 2
    assert run("convert conv_net.onnx --rebuild -o x.engine")[0] == 2


def test_a_finished_campaign_is_read_again(run, ids):
    campaign = ids["debug_build"][-1]
    code, text = run(f"debug build --resume {campaign[:8]}")
    assert code == 0 and "2 good, 0 bad, 0 crashed or hung" in text and f"run:     {campaign}" in text

    code, text = run(f"inspect diff-tactics --runs {campaign[:8]} --experiment e --json")
    assert code == 0 and json.loads(text)["builds"] == 2
    shown = json.loads(run(f"runs show {json.loads(text)['run_id']} --json")[1])
    assert campaign in shown["params"]["runs"] and shown["tags"]["mlflow.parentRunId"] == campaign


def test_a_suspect_is_proved_denied_and_pardoned(run, ids):
    line = "debug build transformer.onnx --onnxrt --allow-approximation --vary-tactics --until 9 --experiment culprit"
    assert run(f"{line} --atol 1e-4 --rtol 1e-4")[0] == 1
    campaign = json.loads(run("runs list --experiment culprit --kind debug_build --json")[1])[0]["id"]

    code, text = run(f"debug prove {campaign} --repeats 1 --suspect 0 --no-deny --json")
    proof = json.loads(text)
    assert code == 0 and proof["outcome"] == "confirmed" and proof["deny_run"] is None
    mended = next(trial["run_id"] for trial in proof["trials"] if trial["swap"] == "out")
    assert run(f"runs promote {mended}")[0] == 0  # it is evaluated as the campaign evaluated
    entry = json.loads(run(f"runs deny {proof['run_id']} --json")[1])["run_id"]
    assert entry[:8] in run("runs list --kind deny")[1]
    assert run(f"runs pardon {entry}")[0] == 2  # without a reason
    assert run(f"runs pardon {entry} --why mended")[0] == 0
    for kind, tag, whole in (
        ("proof", "mlflow.parentRunId", campaign),
        ("promote", "trtops.evidence", mended),
        ("deny", "trtops.pardoned", entry),
    ):
        left = json.loads(run(f"runs list --experiment culprit --kind {kind} --json")[1])[0]["id"]
        assert json.loads(run(f"runs show {left} --json")[1])["tags"][tag] == whole
    assert run(f"runs pardon {campaign} --why mended")[0] == 3
    assert run(f"debug prove {ids['debug_build'][-1]}")[0] == 3  # nothing is suspected


def test_a_run_records_the_printed_verdict(run) -> None:
    assert run("run conv_net.onnx --onnxrt --save-inputs in.json --save-outputs b.json")[0] == 0
    changed = RunResults.load("b.json")
    for name, array in changed[0][1][0].items():
        changed[0][1][0][name] = array + np.float32(0.05)
    changed.save("b.json")

    line = "run conv_net.onnx --onnxrt --load-inputs in.json --load-outputs b.json --atol 0.1 --rtol 0.1"
    code, text = run(f"{line} --experiment notes")

    listed = json.loads(run("runs list --experiment notes --json")[1])[0]
    stored = open_tracker().load(listed["id"])
    report = json.loads(stored.read_bytes(Artifact.ACCURACY))["report"]
    assert code == 0 and "PASSED" in text and listed["verdict"] == report["verdict"] == "good"
    assert stored.info.tags[Tag.NOTE].startswith("**good**")
    assert (report["tolerances"]["atol"], report["tolerances"]["rtol"]) == (0.1, 0.1)


def test_a_candidate_is_gated_by_a_policy(home, run) -> None:
    (home / "gate.yaml").write_text("latency: null\n")
    gated = "gate conv_net.onnx --policy gate.yaml --experiment gated --name gated"

    first, second = run(gated), run(f"{gated} --json")

    assert first[0] == 0 and "no accepted engine" in first[1]
    second_result = json.loads(second[1])
    assert (second[0], second_result["version"], second_result["measured"]["accepted"]["precision"]) == (0, "2", "fp32")
    assert run("gate conv_net.onnx --policy nowhere.yaml")[0] == 3
