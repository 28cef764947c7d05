"""The log of the store: what was removed, moved or changed after it was logged is named, with the place."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.keys import new_key
from tests.stores import copy_store, delete_log, execute
from trtops.cli.main import main
from trtops.ops.auditing.log_check import LogCheck
from trtops.ops.auditing.op import AuditConfig, audit
from trtops.record import sha256
from trtops.system import signing
from trtops.tracking.base import tracked
from trtops.tracking.check import close
from trtops.tracking.mlflow import MlflowTracker
from trtops.tracking.mlflow.store_log import EXPERIMENT
from trtops.tracking.schema import Artifact, Tag
from trtops.tracking.store_log import Entry, grown

ENGINE = "engine/engine.ort"
ACCEPTED = {Tag.ENGINE_SHA256: sha256(b"accepted")}


def log_run(tracker: MlflowTracker, name: str, kind: str = "compare", verdict: str = "good", **fields: Any) -> str:
    with tracked(tracker, "nets", name, kind=kind, **fields) as run:  # type: ignore[arg-type]
        run.log_bytes(name.encode(), ENGINE)
        run.finish(verdict)  # type: ignore[arg-type]
    return run.id


@dataclass
class Store:
    """A store with a campaign, an accepted run, an entry of the deny-list and a pruned run; some are signed."""

    root: Path
    runs: dict[str, str]
    key: Path
    head: str

    @property
    def tracker(self) -> MlflowTracker:
        return MlflowTracker(self.root)

    def sql(self, statement: str, *values: object) -> None:
        execute(self.root, statement, *values)

    def folder(self, run: str) -> Path:
        return next(self.root.glob(f"artifacts/*/{self.runs[run]}/artifacts"))

    def entries(self) -> dict[int, str]:
        return self.tracker.log_entries()[0]

    def put(self, number: int, text: str) -> None:
        self.sql("UPDATE params SET value = ? WHERE key = ?", text, str(number))

    def edit(self, number: int, **facts: object) -> None:
        """Change facts in an entry."""
        entry = json.loads(self.entries()[number])
        self.put(number, json.dumps({**entry, "facts": {**entry["facts"], **facts}}, sort_keys=True))

    def rewrite(self, leave_out: int = -1, **facts: object) -> None:
        """Rewrite the whole log with hashes that fit: without an entry, or with other facts in entry 2."""
        tree, texts = tuple[str, ...](), list[str]()
        for number, text in sorted(self.entries().items()):
            if number != leave_out:
                values = json.loads(text) | {"tree": tree}
                values["facts"] |= facts if number == 2 else {}
                texts.append(json.dumps(values))
                tree = grown(tree, len(texts) - 1, texts[-1])
        for number in self.entries():
            if number < len(texts):
                self.put(number, texts[number])
            else:
                self.sql("DELETE FROM params WHERE key = ?", str(number))

    def number(self, run: str, event: str = "ended") -> int:
        entries = {n: Entry.read(n, text) for n, text in self.entries().items()}
        return next(n for n, entry in entries.items() if (entry.run, entry.event) == (self.runs[run], event))

    def delete(self, run: str, *, permanently: bool = False) -> None:
        self.tracker._client.delete_run(self.runs[run])
        if permanently:  # as `mlflow gc` does
            for folder in self.root.glob(f"artifacts/*/{self.runs[run]}"):
                shutil.rmtree(folder)
            for table in ("tags", "params", "metrics", "latest_metrics", "runs"):
                self.sql(f"DELETE FROM {table} WHERE run_uuid = ?", self.runs[run])

    def audit(self, *runs: str, **options: object) -> list[str]:
        """All contradictions as lines."""
        ids = tuple(self.runs[run] for run in runs)
        every = {} if ids or options else {"sample": 1000}
        result = audit(AuditConfig(runs=ids, rebuild=False, **{**every, **options}), tracker=self.tracker)  # type: ignore[arg-type]
        contradictions = [contradiction for run in result.runs for contradiction in run.contradictions] + [
            *result.log.contradictions
        ]
        return [contradiction.text() for contradiction in contradictions]


@pytest.fixture(scope="module")
def pristine(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("logged")
    tracker = MlflowTracker(copy_store(template, folder / "mlruns"))
    new_key(folder / "key.pem", folder / "key.pub")
    runs = {"first": log_run(tracker, "first"), "bad": log_run(tracker, "bad", verdict="bad")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(signing.KEY_VARIABLE, str(folder / "key.pem"))
        runs["signed"] = log_run(tracker, "signed")
        runs["accepted"] = log_run(tracker, "accepted", "promote", tags=ACCEPTED)
    with tracked(tracker, "nets", "campaign", kind="debug_build") as campaign:
        for number in range(3):
            name = f"iteration {number}"
            verdict = "bad" if number == 1 else "good"
            runs[name] = log_run(tracker, name, "iteration", verdict, parent=campaign.id)
    runs["campaign"] = campaign.id
    runs["denied"] = log_run(tracker, "deny Conv", "deny")
    tracker.register("net", runs["accepted"], ENGINE, alias="cpu", tags=ACCEPTED)
    runs["pruned"] = log_run(tracker, "pruned")
    tracker.drop(runs["pruned"], [ENGINE])
    with pytest.raises(ValueError, match="no kernel"), tracked(tracker, "nets", "failed", kind="build"):
        raise ValueError("no kernel")
    runs["failed"] = tracker.find(status="failed")[0].id
    tracker._client.create_experiment("other")
    return Store(tracker.store.root, runs, folder / "key.pub", tracker.log.head())  # type: ignore[union-attr]


@pytest.fixture
def store(pristine: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr("trtops.tracking.mlflow.store_log._TRIES", 1)  # no process makes a log that was removed
    root = copy_store(pristine.root, tmp_path / "mlruns").resolve()
    return Store(root, {**pristine.runs}, pristine.key, pristine.head)


def test_untouched_store_has_no_contradictions(store: Store) -> None:
    assert store.audit() == store.audit(accepted=True) == store.audit("first") == store.audit(log=(store.head,)) == []
    assert store.audit(sample=2) == store.audit(experiment="nets", log=(store.head,)) == []
    head = audit(AuditConfig(sample=1, rebuild=False), tracker=store.tracker).log.head
    assert head != store.head and store.audit(log=(head, store.head)) == []


Forge = Callable[[Store], None]


def sql(statement: str, *values: object) -> Forge:
    return lambda store: store.sql(statement, *values)


def of_run(run: str, change: str, *values: object) -> Forge:
    return lambda store: store.sql(f"UPDATE runs SET {change} WHERE run_uuid = ?", *values, store.runs[run])


def of_tag(name: str, old: str, new: str) -> Forge:
    return sql("UPDATE tags SET value = ? WHERE key = ? AND value = ?", new, name, old)


def of_signature(data: bytes | None) -> Forge:
    def change(store: Store) -> None:
        file = store.folder("signed") / Artifact.SIGNATURE
        file.unlink() if data is None else file.write_bytes(data)

    return change


def delete(run: str, *, permanently: bool = True) -> Forge:
    return lambda store: store.delete(run, permanently=permanently)


def exchange(store: Store) -> None:
    texts = store.entries()
    store.put(3, texts[4])
    store.put(4, texts[3])


def delete_log_in_ui(store: Store) -> None:
    client = store.tracker._client
    client.delete_experiment(client.get_experiment_by_name(EXPERIMENT).experiment_id)


def seal_again(store: Store) -> None:
    """Another manifest, with a tag that fits."""
    file = store.folder("bad") / Artifact.MANIFEST
    file.write_bytes(file.read_bytes().replace(b'"bad"', b'"good"'))
    seal = "UPDATE tags SET value = ? WHERE key = ? AND run_uuid = ?"
    store.sql(seal, sha256(file.read_bytes()), Tag.MANIFEST_SHA256, store.runs["bad"])


CHANGED, REMOVED, ALIAS = "was changed", "was changed or removed", "'net' with alias 'cpu': version: entry"
FORGERIES: dict[str, tuple[Forge, str]] = {
    "entry removed": (sql("DELETE FROM params WHERE key = '3'"), "1 entries are missing: 3"),
    "last entries removed": (sql("DELETE FROM params WHERE CAST(key AS int) > 5"), "the log today says 6 entries"),
    "entry edited": (lambda store: store.edit(2, ended=1.0), f"entry 2 or one before {CHANGED}"),
    "entry of a forged run edited": (lambda store: store.edit(1, status="killed"), f"entry 1 or one before {CHANGED}"),
    "entries exchanged": (exchange, "entry 3 is damaged or exchanged"),
    "entry is no JSON": (lambda store: store.put(5, "text"), "entry 5 is damaged"),
    "entry with damaged hashes": (
        lambda s: s.put(5, s.entries()[5].replace('e": ["', 'e": ["zz')),
        "entry 5 is damaged",
    ),
    "log removed": (lambda store: delete_log(store.root), "entry 0 was changed or removed"),
    "log deleted in the UI": (delete_log_in_ui, f"experiment '{EXPERIMENT}' was deleted in MLflow"),
    "log rewritten without an entry": (lambda store: store.rewrite(1), REMOVED),
    "log rewritten with other facts": (lambda store: store.rewrite(ended=1.0), REMOVED),
    "run deleted in the UI": (delete("bad", permanently=False), "the store says deleted in MLflow"),
    "run deleted": (delete("bad"), "(compare 'bad' in 'nets'): it was deleted permanently; entry 1 of the log"),
    "iteration deleted": (delete("iteration 1"), "(iteration 'iteration 1' in 'nets'): it was deleted permanently"),
    "entry of the deny-list deleted in the UI": (delete("denied", permanently=False), "(deny 'deny Conv'"),
    "promotion deleted": (delete("accepted"), "(promote 'accepted' in 'nets'): it was deleted permanently"),
    "failed run deleted": (delete("failed"), "(build '! failed' in 'nets'): it was deleted permanently"),
    "run moved": (of_run("bad", "experiment_id = (SELECT max(experiment_id) FROM experiments)"), "store says other"),
    "experiment renamed": (
        sql("UPDATE experiments SET name = 'nests' WHERE name = 'nets'"),
        "nets; the store says nests",
    ),
    "run renamed": (of_run("first", "name = '1st'"), "name: entry 0 of the log says first; the store says 1st"),
    "status changed": (of_run("first", "status = 'KILLED'"), "status: entry 0 of the log says finished"),
    "status of a failed run changed": (of_run("failed", "status = 'FINISHED'"), "it has no manifest.json"),
    "start changed": (of_run("first", "start_time = 1000"), "started: entry 0 of the log says"),
    "end changed": (of_run("first", "end_time = 1000"), "ended: entry 0 of the log says"),
    "verdict changed": (of_tag(Tag.VERDICT, "bad", "good"), "verdict: entry 1 of the log says bad"),
    "user changed": (sql("UPDATE tags SET value = 'somebody' WHERE key = ?", Tag.USER), "the store says somebody"),
    "kind changed": (of_tag(Tag.KIND, "deny", "audit"), "says deny; the store says audit"),
    "campaign of iterations removed": (sql("DELETE FROM tags WHERE key = 'mlflow.parentRunId'"), "parent: entry"),
    "manifest rewritten": (seal_again, "manifest: entry 1 of the log says"),
    "signature removed": (of_signature(None), "signature: entry 2 of the log says"),
    "signature replaced": (of_signature(b"{}"), "signature: entry 2 of the log says"),
    "accepted version removed": (sql("DELETE FROM registered_model_aliases"), ALIAS),
    "accepted version exchanged": (sql("UPDATE registered_model_aliases SET version = 2"), ALIAS),
    "acceptance by somebody else": (
        lambda store: store.tracker._client.set_model_version_tag("net", "1", Tag.ACCEPTED_BY, "somebody"),
        f"tag {Tag.ACCEPTED_BY}: entry",
    ),
    "registered model removed": (lambda store: store.tracker._client.delete_registered_model("net"), ALIAS),
    "engine deleted without an entry": (
        lambda s: s.rewrite(s.number("pruned", "deleted")),
        f"{ENGINE}: it was deleted",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forgery_is_named_with_its_place(store: Store, name: str) -> None:
    forge, named = FORGERIES[name]
    forge(store)

    reported = store.audit()

    assert any(named in line for line in reported), reported


def test_whole_rewrite_contradicts_old_head(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["runs", "audit", "--store", str(store.root), "--no-rebuild", "--log"]
    monkeypatch.setenv(signing.KEY_VARIABLE, str(store.key.with_suffix(".pem")))
    assert main([*line[:-1], store.runs["signed"]]) == 0
    saved = tmp_path / "saved.txt"
    saved.write_text(capsys.readouterr().out)
    assert main([*line, str(saved)]) == main([*line, store.head]) == 0
    manifest = store.folder("signed") / Artifact.MANIFEST
    (tmp_path / "manifest.json").write_bytes(manifest.read_bytes())

    for run in ("signed", "accepted", "campaign", "denied", "pruned"):  # no run remembers a head
        file = store.folder(run) / Artifact.MANIFEST
        file.write_bytes(json.dumps(json.loads(file.read_bytes()) | {"log": ""}).encode())
    store.rewrite(user="somebody")
    assert main([*line, store.head]) == main([*line, str(saved)]) == main([*line, str(tmp_path / "manifest.json")]) == 1
    assert "was changed or removed" in capsys.readouterr().out
    assert main([*line, str(store.folder("first") / ENGINE)]) == main([*line, str(tmp_path / "none")]) == 3


def test_given_head_must_be_signed(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_key(tmp_path / "other.pem", tmp_path / "other.pub")

    def answer(head: str, *keys: Path) -> tuple[str, str]:
        config = AuditConfig(log=(head,), keys=tuple(map(str, keys)))
        # Its own end must not become the signed run that is searched.
        with monkeypatch.context() as patch:
            patch.delenv(signing.KEY_VARIABLE, raising=False)
            result = audit(config, tracker=store.tracker)
        return result.verdict, " ".join(result.log.lines())

    def signed_audit(key: Path) -> str:
        with monkeypatch.context() as patch:
            patch.setenv(signing.KEY_VARIABLE, str(key))
            return audit(AuditConfig(sample=1, rebuild=False), tracker=store.tracker).log.head

    verdict, text = answer(store.head)  # runs without a signature came after the last one with one
    assert verdict == "unproven" and "earlier runs of the store are signed" in text
    verdict, text = answer(store.head, store.key)
    assert verdict == "bad" and "a signature is required" in text
    forged = signed_audit(tmp_path / "other.pem")
    assert answer(forged)[0] == "good"  # no key is given
    verdict, text = answer(forged, store.key)
    assert verdict == "bad" and "which is not one of the given keys" in text
    head = signed_audit(store.key.with_suffix(".pem"))
    for keys in ((), (store.key,), (tmp_path / "other.pub", store.key)):
        verdict, text = answer(head, *keys)
        assert verdict == "good" and ("the given head is signed: run" in text), text
        assert (" by " in text) == bool(keys)
    assert answer(store.head, store.key)[0] == "good"  # a later head covers it
    audits = store.tracker.find(tags={Tag.KIND: "audit"})
    last = next(info for info in audits if store.tracker.peek(info.id, Artifact.SIGNATURE))
    folder = next(store.root.glob(f"artifacts/*/{last.id}/artifacts"))
    manifest = folder / Artifact.MANIFEST
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"log": forged}))
    verdict, text = answer(head, store.key)
    assert verdict == "bad" and f"Run {last.id}: {Artifact.MANIFEST}: it is not what was signed" in text
    (folder / Artifact.SIGNATURE).unlink()
    verdict, text = answer(head)
    assert verdict == "unproven" and f"run {last.id}: signature: entry" in text


def test_interrupted_registration_is_no_forgery(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that registers a version is killed between its calls; then it is registered again."""
    tracker = store.tracker
    client, calls = tracker._client, 0

    def register(killed_at: int) -> None:
        nonlocal calls
        calls = 0

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == killed_at:
                    raise KeyboardInterrupt
                return function(*arguments, **options)

            return call

        with monkeypatch.context() as patch:
            for name in ("create_model_version", "set_logged_model_tags", "set_registered_model_alias"):
                patch.setattr(client, name, counted(getattr(client, name)))
            patch.setattr(tracker.log, "append", counted(tracker.log.append))
            tracker.register("net", store.runs["accepted"], ENGINE, alias="cpu", tags=ACCEPTED)

    def interrupted() -> list[str]:
        result = audit(AuditConfig(sample=1000, rebuild=False), tracker=tracker)
        assert result.verdict != "bad"
        reasons = [*result.log.unverified, *(line for run in result.runs for line in run.unverified)]
        return [reason for reason in reasons if "its registration" in reason]

    # Version 2 is not listed; the alias of version 3 is not set; that of version 4 is, but the log has no end of it.
    for killed_at, expected in ((2, {"2"}), (4, {"2", "3"}), (5, {"2"})):
        with pytest.raises(KeyboardInterrupt):
            register(killed_at)
        assert {reason.split()[1] for reason in interrupted()} == expected
    client.delete_model_version("net", "2")
    client.set_registered_model_alias("net", "cpu", "3")
    assert any("'net' with alias 'cpu': version" in line for line in store.audit())

    register(killed_at=0)
    assert interrupted() == store.audit() == []


def test_registration_during_the_audit_is_no_forgery(store: Store) -> None:
    log = LogCheck(store.tracker)
    store.tracker.register("net", store.runs["accepted"], ENGINE, alias="cpu", tags=ACCEPTED)

    assert not log.check_store(log.ends, {}, (), store.tracker.accepted()).contradictions


def test_runs_outside_of_the_log_are_not_verified(store: Store) -> None:
    ids = []
    for name in ("removed", "closed"):
        tracker = store.tracker
        run = tracker.start("nets", name, kind="compare")
        run._end = lambda *args, **keywords: None  # type: ignore[method-assign] # the process is killed
        run.finish("good")
        close(tracker, run.id, force=True)
        ids.append(run.id)
        if name == "removed":
            store.sql("DELETE FROM params WHERE key = ?", str(max(store.entries())))

    config = AuditConfig(runs=tuple(ids), rebuild=False)

    result = audit(config, tracker=store.tracker)
    reasons = [run_audit.unverified[-1] for run_audit in result.runs]
    assert "its process was killed before it wrote the entry, its account may not, or the entry" in reasons[0]
    assert "logged later" in reasons[1] and result.verdict == "unproven" and not result.log.contradictions
    store.sql("UPDATE runs SET end_time = 1000000 WHERE run_uuid = ?", ids[0])
    older = "the run is older than the log, which began at 20"
    assert older in audit(config, tracker=store.tracker).runs[0].unverified[-1]
    delete_log(store.root)
    assert "the log has no entries yet; other" in audit(config, tracker=store.tracker).runs[0].unverified[-1]
