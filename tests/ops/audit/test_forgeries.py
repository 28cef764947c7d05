"""A hundred forgeries of files, manifests, tags, database and log, and two hundred honest runs of every kind."""

import collections
import json
import random
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests import campaigns, models
from tests.long_runs import LONG
from tests.ops.audit.conftest import Logged, make_store
from tests.ops.audit.test_integrity import DERIVED, ENGINE, FILES, IN_THE_DATABASE, PAGE
from tests.ops.audit.test_logged_models import covered_columns, logged_model
from tests.stores import copy_store, execute
from trtops import errors
from trtops.cli.main import main
from trtops.ops.auditing.log_check import LogCheck
from trtops.ops.auditing.op import AuditConfig, audit
from trtops.ops.auditing.result import AuditResult
from trtops.system.worker import close_workers
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.schema import KINDS, Tag
from trtops.tracking.store_log import Entry, grown, run_facts

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not LONG, reason="TRTOPS_TEST_LONG=1 runs it"),
]

Forge = Callable[[Logged], None]
# What must be named: one of these texts, with "{entry}" for the number of the run's entry in the log.
Forgery = tuple[str, Forge, tuple[str, ...]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logged]:
    """A store with its log and without signatures."""
    yield make_store(tmp_path_factory.mktemp("plain"), signed=False)
    close_workers()


def relog(store: Logged, without: str = "") -> None:
    """Rewrite the log: entries state what the database states now, and their hashes fit."""
    texts, tree = store.tracker.log_entries()[0], tuple[str, ...]()
    rows = {info.id: info for info, _ in store.tracker.all_runs()}
    new: list[str] = []
    for number in sorted(texts):
        values = json.loads(texts[number])
        if values["run"] != without:
            if values["event"] == "ended" and values["run"] in rows:
                values["facts"] = run_facts(rows[values["run"]], None)
            new.append(json.dumps(values | {"tree": tree}, ensure_ascii=False))  # as the product writes it
            tree = grown(tree, len(new) - 1, new[-1])
    assert [Entry.read(*numbered).run for numbered in enumerate(new)]
    for number in texts:
        if number < len(new):
            store.execute("UPDATE params SET value = ? WHERE key = ?", new[number], str(number))
        else:
            store.execute("DELETE FROM params WHERE key = ?", str(number))


def delete(store: Logged, run: str) -> None:
    shutil.rmtree(store.folder(run).parent)
    for table in ("tags", "params", "metrics", "latest_metrics"):
        execute(store.root, f"DELETE FROM {table} WHERE run_uuid = ?", store.runs[run])
    store.execute("DELETE FROM runs WHERE run_uuid = ?", store.runs[run])


def delete_run(run: str, method: str, store: Logged) -> None:
    if method == "in MLflow":
        store.set(run, "run", "lifecycle_stage", "deleted")
    else:
        delete(store, run)
    if method == "with its entry":
        relog(store, without=store.runs[run])


def change_file(name: str, level: int, store: Logged) -> None:
    """Change a file; then hide that in the manifest, the tags, the database and the log."""
    run, path, change, _ = FILES[name]
    store.edit(run, path, change)
    if level > 0:
        store.rewrite_manifest(run)
    if level > 1:
        store.rewrite_tags(run)
    if level > 2:
        if path == ENGINE:
            store.set(run, "metric", "build/engine_bytes", (store.folder(run) / path).stat().st_size)
        store.restate(run)
    if level > 3:
        relog(store)


def change_row(name: str, level: int, store: Logged) -> None:
    """Change a value in the database; then hide that in the manifest and the log."""
    run, where, changed, value, _ = IN_THE_DATABASE[name]
    store.set(run, where, changed, value)
    if level > 0:
        store.restate(run)
    if level > 1:
        relog(store)


def forgeries() -> dict[str, Forgery]:
    """All of them, by name."""
    levels = ("", " and manifest", ", manifest and tags", ", manifest, tags and database", ", ..., and log")
    forgeries_by_name: dict[str, Forgery] = {}
    for name, (run, path, _, message) in FILES.items():
        named = (f"{path}: ", f"{path}: tag {Tag.NOTE} says", *[message] * 3)
        for level, text in enumerate(named):
            forgeries_by_name[f"{name}: file{levels[level]}"] = run, partial(change_file, name, level), (text,)
    for name, (run, _, _, _, message) in IN_THE_DATABASE.items():
        logged = message if name in DERIVED else "manifest: entry {entry} of the log says"
        # The tag is in the manifest's statement again, and the number perhaps only on the page.
        stated = logged, f"{PAGE}: ", f"tag {Tag.ENGINE_SHA256}: "
        for hidden, text in (
            ("", (message, "status: entry {entry} of the log says")),
            (" and manifest", stated),
            (", manifest and log", ("entry {entry} was changed", message)),
        ):
            level = ("", " and manifest", ", manifest and log").index(hidden)
            forgeries_by_name[f"{name}: database{hidden}"] = run, partial(change_row, name, level), text
    for run in ("fp32", "accepted", "iteration", "campaign", "gate", "calibrate"):
        for method, text in (
            ("in MLflow", "status: entry {entry} of the log says"),
            ("with its files", "it was deleted permanently; entry {entry} of the log"),
            # Its manifest, which states the head before the entry, is gone as well.
            ("with its entry", "{before} to {entry} was changed|entry 0 was changed|{before} to {after} was changed"),
        ):
            forgeries_by_name[f"{run} deleted {method}"] = run, partial(delete_run, run, method), tuple(text.split("|"))
    return forgeries_by_name


def lines(result: AuditResult) -> list[str]:
    contradictions = [contradiction.text() for run in result.runs for contradiction in run.contradictions]
    return [*contradictions, *(contradiction.text() for contradiction in result.log.contradictions)]


def test_forgeries_are_named(plain: Logged, tmp_path: Path) -> None:
    head, unnamed, rng = plain.tracker.log.head(), dict[str, object](), random.Random(38)
    every, config = forgeries(), AuditConfig(sample=1000, rebuild=False, log=(head,))
    entries = {run_id: number for run_id, (number, _) in LogCheck(plain.tracker).ends.items()}
    names = rng.sample(sorted(every), 100)
    for number, name in enumerate(names):
        # MLflow keeps connections to the database of each address.
        root = copy_store(plain.root, tmp_path / f"forged{number}").resolve()
        run, forge, texts = every[name]
        forge(Logged(root, plain.runs, plain.key, plain.private))
        reported = lines(audit(config, tracker=Logged(root, plain.runs, plain.key, plain.private).tracker))
        entry = entries[plain.runs[run]]
        named = [text.format(entry=entry, before=entry - 1, after=entry + 1) for text in texts]
        if not any(text in line for text in named for line in reported):
            unnamed[name] = named, reported
        shutil.rmtree(root)

    print(f"{len(names) - len(unnamed)} of {len(names)} forgeries named")
    for name, missing in unnamed.items():
        print(name, missing)
    assert not unnamed


# Rows in which the columns of a table are changed, by its name.
ROWS = {
    "runs": "run_uuid = :run",
    "tags": "run_uuid = :run AND key = 'trtops.verdict'",
    "params": "run_uuid = :run AND key = 'precision'",
    "metrics": "run_uuid = :run AND key = 'error/max_abs'",
    "latest_metrics": "run_uuid = :run AND key = 'error/max_abs'",
    "experiments": "experiment_id = (SELECT experiment_id FROM runs WHERE run_uuid = :run)",
    "datasets": "dataset_uuid IN (SELECT source_id FROM inputs WHERE destination_id = :run)",
    "inputs": "destination_id = :model",
    "input_tags": "input_uuid IN (SELECT input_uuid FROM inputs WHERE destination_id = :run)",
    "logged_models": "model_id = :model",
    "logged_model_metrics": "model_id = :model AND metric_name = 'error/max_abs'",
    "logged_model_params": "model_id = :model AND param_key = 'precision'",
    "logged_model_tags": "model_id = :model AND tag_key = 'trtops.verdict'",
    "registered_models": "name = 'conv_net'",
    "registered_model_aliases": "alias = 'accepted'",
    "model_versions": "name = 'conv_net'",
    "model_version_tags": f"key = '{Tag.ENGINE_SHA256}'",
}
OTHERS = {"status": "KILLED", "lifecycle_stage": "deleted", "experiment_id": 0}  # where a column has a constraint


def test_change_of_every_covered_column_is_named(plain: Logged, tmp_path: Path) -> None:
    keys, unnamed = {"run": plain.runs["fp16"], "model": logged_model(plain, "fp16")}, list[str]()
    columns = [(table, name) for table, how, names in covered_columns() if how != "free" for name in names]
    for table, name in columns:
        root = copy_store(plain.root, tmp_path / f"{table}.{name}").resolve()
        store = Logged(root, plain.runs, plain.key, plain.private)
        with closing(sqlite3.connect(root / "mlflow.db")) as database, database:
            old, *_ = database.execute(f"SELECT {name} FROM {table} WHERE {ROWS[table]}", keys).fetchone()
            new = old + 1 if isinstance(old, (int, float)) else f"{old[:-1]}{'10'[old[-1] == '1']}"
            if name == "metric_timestamp_ms":  # any time within the run is right
                new = old + 10**9
            if table in ("runs", "experiments", "logged_models") and name in OTHERS and old != 2:
                new = OTHERS[name] if table != "experiments" else 9
            database.execute(f"UPDATE {table} SET {name} = :new WHERE {ROWS[table]}", {**keys, "new": new})
        try:
            named = bool(lines(audit(AuditConfig(sample=1000, rebuild=False), tracker=store.tracker)))
        except errors.IncompleteRunError as exc:  # MLflow itself cannot read the run
            named = "cannot be read" in str(exc)
        if not named:
            unnamed.append(f"{table}.{name}: {old} became {new}")
        shutil.rmtree(root)
    print(f"{len(columns) - len(unnamed)} of {len(columns)} changed columns named")
    assert not unnamed


# Lines of commands as users type them, integers among the options. In braces: the kind of run, or "kind of experiment".
COMMANDS = """
    convert net.onnx --onnxrt --load-inputs net.npz --seed 1 --experiment nets
    convert net.onnx --onnxrt --fp16 --load-inputs net.npz --experiment nets
    convert net.onnx --onnxrt --int8 --load-inputs net.npz --iterations 3 --experiment nets
    convert net.onnx --onnxrt --load-inputs net.npz --seed 1 --experiment nets
    convert net.onnx --onnxrt --load-inputs net.npz --atol 0 --rtol 1 --experiment nets
    convert none.onnx --onnxrt --experiment nets
    build-list list.yaml --experiment list
    evaluate net.onnx --model net.onnx --load-inputs net.npz --iterations 2 --experiment others
    choose net.onnx --load-inputs net.npz --iterations 2 --loss 1% --minutes 1 --experiment choices
    compare run:{build} run:{build} --atol 1 --rtol 0 --experiment others
    run net.onnx --onnxrt --onnx --load-inputs net.npz --atol 1 --rtol 0 --experiment others
    inspect engines {build} {build} --experiment others
    calibrate net.onnx --onnxrt --calibration-data net.npz --min-samples 1 --experiment others
    sensitivity net.onnx --calibration-cache run:{calibrate} --load-inputs net.npz --experiment others
    debug precision net.onnx --onnxrt --load-inputs net.npz --atol 1 --rtol 0 --experiment others
    debug accuracy net.onnx --onnxrt --load-inputs net.npz --atol 1 --rtol 0 --experiment others
    debug reduce net.onnx --experiment others --check sh check.sh
    debug build blocks.onnx CAMPAIGN --until 50 --rtol 0 --no-bisect --experiment flaky
    debug build blocks.onnx CAMPAIGN --until 40 --rtol 1 --max-builds 99 --experiment integers
    debug build blocks.onnx CAMPAIGN --until 40 --rtol 0.0 --l2-threshold 3 --experiment floats
    debug build blocks.onnx CAMPAIGN --until 40 --rtol 0 --iterations 2 --parallel 2 --experiment parallel
    debug build blocks.onnx CAMPAIGN --until decided --rtol 0 --experiment decided
    debug diff-tactics --runs {debug_build of flaky} --experiment others
    debug bisect {debug_build of flaky}
    debug prove {debug_build of flaky} --repeats 1 --no-deny
    runs deny {proof}
    runs pardon {deny} --why mistake
    runs promote {build} --name net
    gate net.onnx --onnxrt --load-inputs net.npz --minutes 1 --experiment gates
    gate net.onnx --onnxrt --load-inputs net.npz --minutes 1 --builds 2 --no-register --experiment gates
    gate net.onnx --onnxrt --precisions fp32 fp16 --load-inputs net.npz --minutes 1 --experiment gates
    triage net.onnx --onnxrt --fp16 --load-inputs net.npz --experiment others
    runs audit --experiment list --no-rebuild
"""
CAMPAIGN = "--onnxrt --random-tactics --allow-approximation --load-inputs feed.npz --atol 1e-4 --latency-runs 0"


def test_honest_runs_of_every_kind_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRTOPS_HOME", str(tmp_path / "mlruns"))
    campaigns.two_blocks(tmp_path)
    models.conv_net().fixed().write(tmp_path, "net")
    np.savez("net.npz", **models.conv_net().fixed().feed)  # type: ignore[arg-type]
    Path("check.sh").write_text("! grep -q Conv trtops_debug.onnx")
    Path("list.yaml").write_text("models:\n  - model: net.onnx\n  - model: blocks.onnx\n")

    def run_id(match: re.Match[str]) -> str:
        kind, _, experiment = match[1].partition(" of ")
        return MlflowTracker(tmp_path / "mlruns").find(experiment or None, tags={Tag.KIND: kind})[-1].id

    for line in COMMANDS.replace("CAMPAIGN", CAMPAIGN).strip().splitlines():
        words = re.sub(r"{(.*?)}", run_id, line).split()
        assert main(words) in (0, 1, 3, 4), line

    tracker = MlflowTracker(tmp_path / "mlruns")
    result = audit(AuditConfig(tags=((Tag.KIND, "audit"),), rebuild=False), tracker=tracker)
    others = audit(AuditConfig(sample=10_000, rebuild=False), tracker=tracker)
    run_audits = (*result.runs, *others.runs)
    alarms = [*lines(result), *lines(others), *(reason for run_audit in run_audits for reason in run_audit.unverified)]
    counts = collections.Counter(run_audit.kind for run_audit in run_audits)
    print(f"{len(alarms)} alarms in {len(run_audits)} honest runs: {dict(counts)}", *alarms, sep="\n")
    assert not alarms and {*counts} == {*KINDS} and len(run_audits) >= 200
