"""A hundred forgeries of files, manifests, tags, database and log, and two hundred untouched runs."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.long_runs import LONG
from tests.ops.audit.conftest import Logged, make_store
from tests.ops.audit.test_integrity import DERIVED, ENGINE, FILES, IN_THE_DATABASE, PAGE
from tests.stores import copy_store, execute
from trtops.ops.auditing.log_check import LogCheck
from trtops.ops.auditing.op import AuditConfig, audit
from trtops.ops.auditing.result import AuditResult
from trtops.system.worker import close_workers
from trtops.tracking.schema import Tag
from trtops.tracking.store_log import Entry, grown, run_facts

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


@pytest.mark.skipif(not LONG, reason="TRTOPS_TEST_LONG=1 runs it")
def test_forgeries_are_named_and_untouched_runs_pass(plain: Logged, tmp_path: Path) -> None:
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

    runs, alarms = 0, list[str]()
    while runs < 200:
        root = copy_store(plain.root, tmp_path / f"untouched{runs}").resolve()
        result = audit(config, tracker=Logged(root, plain.runs, plain.key, plain.private).tracker)
        runs += len(result.runs)
        alarms += [
            *lines(result),
            *(f"{run_audit.id}: {run_audit.unverified}" for run_audit in result.runs if run_audit.unverified),
        ]
    print(f"{len(names) - len(unnamed)} of {len(names)} forgeries named; {len(alarms)} alarms in {runs} untouched runs")
    for name, missing in unnamed.items():
        print(name, missing)
    assert not alarms and not unnamed
