"""Compare runs and registry with the log of the store (:mod:`trtops.tracking.store_log`), and the log with itself."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from trtops import errors
from trtops.ops.auditing.result import LogAudit
from trtops.ops.facts import Claim, Contradiction
from trtops.tracking.base import RegisteredVersion, RunInfo, StoredRun, Tracker
from trtops.tracking.schema import Artifact
from trtops.tracking.signatures import require_signed
from trtops.tracking.store_log import HEAD, Entry, Facts, grown, head_of, run_facts


class LogCheck:
    """The log of a store, read and verified once for all runs of an audit."""

    def __init__(self, tracker: Tracker) -> None:
        """Read the log. Raises TrackingUnavailableError if the store does not answer."""
        self._tracker = tracker
        self._problems: dict[str, Contradiction] = {}
        self._unverified: list[str] = []
        self._signed = ""
        self._matching = {0}  # sizes of the log with the stated head
        self._differing: dict[int, tuple[Claim, Claim]] = {}  # sizes with another one
        self._read()

    def _read(self) -> None:
        """Read the log; again if another process may have added entries."""
        self.ends: dict[str, tuple[int, Entry]] = {}  # the last end of each run, with its number, by the run's id
        self.registered: dict[tuple[str, str], tuple[int, Entry]] = {}  # the last version by name and alias
        self._registering: dict[tuple[str, str], tuple[int, Entry]] = {}  # those without an end of the registration
        self._deleted: set[tuple[str, str]] = set()  # runs and paths
        self._trees: list[tuple[str, ...]] = [()]  # by number of entries
        self._began = float("inf")  # when the first entry was written, in seconds since the epoch
        texts, problems = self._tracker.log_entries()
        missing = [number for number in range(max(texts, default=0)) if number not in texts]
        for problem in [*problems, *([f"{len(missing)} entries are missing: {str(missing)[1:60]}"] if missing else ())]:
            self._wrong(problem)
        for number in range(max(texts, default=-1) + 1):
            text = texts.get(number, "")
            try:
                entry = Entry.read(number, text)
            except errors.FormatError as exc:
                if text:
                    self._wrong(f"entry {number} is damaged or exchanged ({exc})")
            else:
                self._began = min(self._began, entry.time)
                if entry.tree != self._trees[number]:
                    self._wrong(
                        f"entry {number - 1} or one before was changed: entry {number} has another hash of them"
                    )
                # From here on with the stated hashes, so that each change is reported once.
                self._trees[number] = entry.tree
                key = str(entry.facts.get("name")), str(entry.facts.get("alias"))
                if entry.event == "registering":
                    self._registering[key] = number, entry
                elif entry.event == "registered":
                    self.registered[key] = number, entry
                    self._registering.pop(key, None)
                elif entry.event == "deleted":
                    self._deleted.add((entry.run, str(entry.facts.get("path"))))
                else:
                    self.ends[entry.run] = number, entry
            self._trees.append(grown(self._trees[number], number, text))

    def _wrong(self, problem: str, *claims: Claim) -> None:
        self._problems.setdefault(problem, Contradiction(subject="log of the store", reason=problem, claims=claims))

    @property
    def first_signed(self) -> float:
        """When the first signed run of the store ended, in seconds since the epoch; infinite without one."""
        return min(
            (entry.time for _, entry in self.ends.values() if entry.facts.get("signature")), default=float("inf")
        )

    def check_head(self, head: str, source: str) -> None:
        """Compare an old head, stated in ``source``, with today's log."""
        if (size := int(head.partition(":")[0])) >= len(self._trees):
            self._read()
        current_size = len(self._trees) - 1
        current_head = head_of(self._trees[size], size) if size <= current_size else f"{current_size} entries"
        if current_head == head:
            self._matching.add(size)
        else:
            self._differing[size] = Claim(source=source, value=head), Claim(source="the log today", value=current_head)

    def check_given(self, heads: Collection[str], keys: tuple[str, ...]) -> None:
        """Compare old heads with today's log; verify their signatures if keys are given or runs are signed.

        A head is signed if a signed run states it, or a later one, which is a hash over the same entries and more.
        """
        for head in heads:
            self.check_head(head, f"the given head {head[:20]}...")
        signed = sorted(
            ((n, e) for n, e in self.ends.values() if e.facts.get("signature")), key=lambda numbered: numbered[0]
        )
        if not heads or not (signed or keys):
            return
        largest, problems = max(int(head.partition(":")[0]) for head in heads), list[str]()
        for number, entry in signed:
            if number < largest:  # a run's head is before its entry
                continue
            try:
                run = self._tracker.load(entry.run)
                key = require_signed(run, keys)
            except errors.TrackingUnavailableError:
                raise
            except errors.TrtopsError as exc:
                problems.append(str(exc))
                continue
            different = _differences(number, entry, run_facts(run.info, run.unlisted(Artifact.SIGNATURE)))
            problems += [f"run {entry.run}: {numbered.text()}" for numbered in different]
            if not different and HEAD.fullmatch(stated := run.manifest.log) and int(stated.split(":")[0]) >= largest:
                self.check_head(stated, f"{Artifact.MANIFEST} of run {entry.run}")
                self._signed = f"the given head is signed: run {entry.run}{f' by {key[:12]}' * bool(key)}"
                return
        problem = f"no signed run states the given head with {largest} entries or a later one"
        if keys:
            self._wrong(". ".join([f"{problem}, and a signature is required", *problems[:3]]))
        else:
            self._unverified.append(". ".join([f"{problem}, and earlier runs of the store are signed", *problems[:3]]))

    def check_run(self, run: StoredRun) -> tuple[list[Contradiction], list[str]]:
        """Return the contradictions between a run and the log, and the reasons why it is not proven unchanged."""
        info, head = run.info, run.manifest.log
        if HEAD.fullmatch(head):
            self.check_head(head, f"{Artifact.MANIFEST} of run {info.id}")
        if info.id not in self.ends:
            self._read()
        if info.id not in self.ends:
            cause = "its process was killed before it wrote the entry, its account may not, or the entry was removed"
            if len(self._trees) == 1:
                cause = f"the log has no entries yet; otherwise {cause}"
            elif (info.end_time or info.start_time) < self._began:
                began = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self._began))
                cause = f"the run is older than the log, which began at {began}; otherwise {cause}"
            return [], [f"it is not in the log of the store: {cause}"]
        number, entry = self.ends[info.id]
        facts = run_facts(info, run.unlisted(Artifact.SIGNATURE)) | {"logged model": run.details().model}
        differences = _differences(number, entry, facts)
        for dropped in run.manifest.dropped:
            if (info.id, dropped.path) not in self._deleted:
                reason = "it was deleted, and the log has no entry about that"
                differences.append(Contradiction(subject=dropped.path, reason=reason))
        late = "its process was killed, and its end was logged later: changes before that do not show"
        return differences, [late] if entry.event == "closed" else []

    def check_store(
        self,
        expected: Collection[str],
        rows: Mapping[str, RunInfo],
        audited: Collection[str],
        accepted: Iterable[tuple[str, RegisteredVersion]],
    ) -> LogAudit:
        """Compare ``expected`` runs, and their versions in the registry, with the log.

        ``rows`` are runs that were found, by id. Those that were ``audited`` have been compared with :meth:`check_run`.
        """
        differences: list[Contradiction] = []
        for run_id in sorted({*expected} - {*audited}, key=lambda logged_id: self.ends[logged_id][0]):
            differences += self._check_row(*self.ends[run_id], rows.get(run_id))
        registry_differences, interrupted = self._check_registry(expected, accepted)
        if registry_differences:  # another process may have registered a version since the log was read
            self._read()
            registry_differences, interrupted = self._check_registry(expected, self._tracker.accepted())
        differences += registry_differences
        if self._differing:  # all larger heads differ as well
            end = min(self._differing)
            start = max(size for size in self._matching if size < end)
            entries = f"entry {start}" if start == end - 1 else f"one of the entries {start} to {end - 1}"
            self._wrong(f"{entries} was changed or removed", *self._differing[end])
        size = len(self._trees) - 1
        return LogAudit(
            head=head_of(self._trees[size], size),
            contradictions=(*self._problems.values(), *differences),
            unverified=(*self._unverified, *interrupted),
            signed=self._signed,
        )

    def _check_registry(
        self, expected: Collection[str], accepted: Iterable[tuple[str, RegisteredVersion]]
    ) -> tuple[list[Contradiction], list[str]]:
        """Compare each alias with its last entry; returns contradictions, and interrupted registrations."""
        versions = {(version.name, alias): {"alias": alias, **version.facts()} for alias, version in accepted}
        contradictions, interrupted = list[Contradiction](), list[str]()
        for key in {**self.registered, **self._registering}:
            subject = f"{key[0]!r} with alias {key[1]!r}"
            entries = [logged[key] for logged in (self._registering, self.registered) if key in logged]
            if all(entry.run in self.ends and entry.run not in expected for _, entry in entries):
                continue
            differences = []
            for number, entry in entries:
                facts: Facts = {"version": None}
                if key in versions:
                    facts = {**dict.fromkeys(entry.facts), **versions[key]}
                differences.append(_differences(number, entry, facts, f"{subject}: ", "the registry"))
            unchanged = not differences[-1] if key in self.registered else key not in versions
            if key in self._registering and differences[0] and unchanged:
                number, entry = entries[0]
                reason = f"its registration, entry {number} of the log, was interrupted. Promote or gate again"
                interrupted.append(f"version {entry.facts.get('version')} of {subject}: {reason}")
            elif all(differences):
                contradictions += differences[-1]
        return contradictions, interrupted

    def _check_row(self, number: int, entry: Entry, info: RunInfo | None) -> list[Contradiction]:
        """Compare a logged run with its row in the database; ``info`` is None if the audit did not read it."""
        facts, row_facts = entry.facts, {}
        run_name = f"run {entry.run} ({facts.get('kind')} {facts.get('name')!r} in {facts.get('experiment')!r})"
        for _ in range(2):
            if info is not None:
                row_facts = run_facts(info, None) | {"signature": facts.get("signature")}
                # Another process may have resumed a run that failed, and a run is in the log before it has its status.
                failed, new = facts.get("manifest") is None, time.time() - entry.time < 10
                if not _differences(number, entry, row_facts) or (info.status == "running" and (failed or new)):
                    return []
            try:
                info = self._tracker.info(entry.run)  # the row may have been read before the run ended
            except errors.RunNotFoundError:
                return [
                    Contradiction(
                        subject=run_name, reason=f"it was deleted permanently; entry {number} of the log is its end"
                    )
                ]
        return _differences(number, entry, row_facts, f"{run_name}: ")


def _differences(
    number: int, entry: Entry, current_facts: Facts, subject: str = "", source: str = "the store"
) -> list[Contradiction]:
    contradictions = []
    for name, value in current_facts.items():
        if (logged := entry.facts.get(name)) != value:
            values = ((f"entry {number} of the log", logged), (source, value))
            claims = tuple(Claim(source=origin, value=str(fact_value or "nothing")) for origin, fact_value in values)
            contradictions.append(Contradiction(subject=f"{subject}{name}", claims=claims))
    return contradictions


def read_heads(text_or_path: str) -> list[str]:
    """The heads in a text, or in a file, such as an audit's output or a manifest; ConfigError without one."""
    text = text_or_path
    if not HEAD.fullmatch(text_or_path):
        try:
            text = Path(text_or_path).read_text(encoding="utf-8")
        except (OSError, ValueError) as exc:
            expected = "expected a head such as 57:3fa9..., which audits print, or a file with one"
            raise errors.ConfigError(f"log={text_or_path!r}: {expected} ({exc}).") from None
    if not (heads := [match[0] for match in HEAD.finditer(text)]):
        raise errors.ConfigError(f"{text_or_path} contains no head of a log, such as 57:3fa9...; audits print it.")
    return heads
