"""The gate on builds: a decision on the share of a candidate's builds within the limits."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.ops.campaign.diff_tactics import diff_body, log_diff
from trtops.ops.gate.findings import EVIDENCE, Decision, Finding, FindingOutcome
from trtops.ops.gate.measurement import GateSession
from trtops.ops.gate.op import end_gate, gate, registered
from trtops.ops.gate.policy import GateConfig, Policy
from trtops.ops.gate.releases import HERE, name_of
from trtops.ops.gate.result import GateResult
from trtops.ops.gate.tolerance import CONFIDENCE, BuildShare, ShareDecision, decide_share, shown_share
from trtops.ops.result import model_file, model_source, op_run, run_step
from trtops.record import Record
from trtops.reports.document import Section, Table
from trtops.tactics.diff import diff
from trtops.tactics.findings import TacticDiff
from trtops.tactics.table import CampaignTable
from trtops.tracking import builds, campaigns, schema
from trtops.tracking.base import MetricName, Tracker
from trtops.tracking.builds import find_model

_ACCEPTED_BUILDS = 5
"""Builds of the accepted engine. If one in ten is slow, the median of five is in 0.9 % of gates."""

# Findings that would stop every other build of this gate as well.
_STOPS = {(EVIDENCE, "open"), ("accepted", "refuse"), ("device", "refuse"), ("release", "refuse")}

_BUILD_COLUMNS = {
    "number": "build", "of": "of", "decision": "decision", "outside": "outside for", "ratio": "latency ratio",
    "latency_ms": "latency (ms)", "kernels": "kernels", "tactics_sha256": "tactics", "run_id": "run",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GatedBuild(Record):
    """One build, made with tactics timed afresh, and how it compares with the reference engine."""

    number: int
    of: str  # "first", "accepted" or "candidate"
    decision: Decision
    reasons: tuple[str, ...]
    outside: str  # the checks that refused it, such as "latency"
    ratio: float | None  # of latencies, to the reference engine
    latency_ms: float | None
    kernels: str  # their numbers by the precision that they compute in
    tactics_sha256: str  # of the choices; empty if there is no engine
    run_id: str


@dataclass(frozen=True, kw_only=True)
class DistributionResult(GateResult):
    """The decision on a candidate from several builds of it."""

    build_share: BuildShare
    candidate_builds: int  # of these some are ``outside`` the limits, and some ``unclear``
    outside: int
    unclear: int
    share: float  # of all builds, shown to be within the limits
    builds: tuple[GatedBuild, ...]
    reference: str  # id of the run with the engine that all builds of the candidate were compared with
    tactics: TacticDiff  # between builds of the candidate within the limits and outside

    def rows(self) -> Iterable[tuple[str | float | None, ...]]:
        """Rows of the table, one for each build."""
        for build in self.builds:
            row = {**vars(build), "number": str(build.number), "tactics_sha256": build.tactics_sha256[:12]}
            yield tuple(row[name] for name in _BUILD_COLUMNS)

    def sections(self) -> Iterable[Section]:
        """The decision, all builds, and the tactics specific to builds outside the limits."""
        yield from super().sections()
        yield Section(title="Builds", table=Table(columns=tuple(_BUILD_COLUMNS.values()), rows=tuple(self.rows())))
        if self.outside:
            yield Section(title="Tactics of builds outside the limits", text="\n".join(diff_body(self.tactics)))

    def metrics(self) -> dict[MetricName, float]:
        """The number of builds, of those outside and unclear, and the proven share."""
        numbers = {"outside": self.outside, "unclear": self.unclear, "share": self.share}
        return schema.family(schema.Metric.GATE, builds=self.candidate_builds, **numbers)


def gate_builds(
    model: str | Path | Model,
    config: GateConfig,
    *,
    tracker: Tracker,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
) -> DistributionResult:
    """Build candidate and accepted engine several times, and decide on the share of builds within the policy's limits.

    Each build is a gate of its own below this run: no timing cache, no replay, no stored engine. The reference of the
    candidate's builds is the accepted build of median latency; without an accepted engine, that of the candidate's own
    builds. Equal builds are timed once. The first build within the limits is registered, since the fastest would be
    an exception.
    """
    if config.candidate is not None:
        raise errors.ConfigError("candidate is one engine, which says nothing about other builds; leave it or builds.")
    path, build_share = model_file(model), config.distribution
    label = f"{config.build.precision} {name_of(config.release)}, {build_share.builds} builds"
    name = f"gate {path.stem} {label}"
    with (
        op_run(tracker, experiment, name, kind="gate_builds", model=path, tags=tags, parent=parent) as op,
        GateSession() as session,
    ):
        op.run.log_params({"release": name_of(config.release), "policy": config.policy.digest, **build_share.to_dict()})
        where = {"tracker": tracker, "experiment": op.experiment, "tags": tags, "parent": op.run.id, "session": session}
        several = _Builds(model, config, tracker, where)
        first = several.add("first", model, config)  # finds the accepted engine, and shows if the data prove anything
        is_stopped = any((finding.subject, finding.outcome) in _STOPS for finding in first.findings)
        candidate_config = several.fixed_to_reference(first)
        reference, table = candidate_config.accepted, several.table
        holder, outside, unclear = "", 0, 0
        decision: ShareDecision = "open"
        while not is_stopped and decision == "open" and len(table) < build_share.builds and several.minutes_left() > 0:
            keep_model = config.keep_model and not holder
            built = several.add("candidate", model, replace(candidate_config, keep_model=keep_model))
            is_alone = built.measured is not None and built.measured.accepted is None
            if candidate_config.accepted is None and built.decision == "accept" and is_alone:
                candidate_config = replace(candidate_config, accepted=built.holder)
            outside += built.verdict == "bad"
            unclear += built.verdict not in ("good", "bad")
            holder = holder or (built.holder if built.verdict == "good" else "")
            decision = decide_share(build_share, len(table), outside, unclear)
        share = build_share.required
        if decision != "accept":
            share = shown_share(build_share, len(table), outside + unclear)
        result = DistributionResult(
            title=f"gate {path.name} {label}",
            subject=model_source(model),
            findings=first.findings,
            policy=config.policy,
            precision=config.build.precision,
            release=name_of(config.release),
            holder=holder,
            seconds=time.perf_counter() - several.began,
            build_share=build_share,
            candidate_builds=len(table),
            outside=outside,
            unclear=unclear,
            share=share,
            builds=tuple(several.builds),
            reference=reference or "",
            tactics=diff(table),
        )
        if not is_stopped:
            result = replace(result, findings=tuple(_findings(result, decision)))
        op.run.log_table(schema.Artifact.GATE_TABLE, tuple(_BUILD_COLUMNS.values()), map(list, result.rows()))
        log_diff(op.run, result.tactics)
        op.run.set_tags({schema.Tag.EVIDENCE: holder} if holder else {})
        result = end_gate(op, result)
    return registered(result, config, tracker)


@dataclass
class _Builds:
    """The builds of one gate so far. ``table`` has the tactics of the candidate's."""

    model: str | Path | Model
    config: GateConfig
    tracker: Tracker
    where: Mapping[str, Any]  # options of the gate of each build
    builds: list[GatedBuild] = field(default_factory=list)
    table: CampaignTable = field(default_factory=CampaignTable)
    began: float = field(default_factory=time.perf_counter)
    _longest_build: float | None = None  # in seconds

    def minutes_left(self) -> float:
        """The minutes until the end of the budget."""
        return max(0.0, self.config.minutes - (time.perf_counter() - self.began) / 60)

    def add(self, of: str, model: str | Path | Model, config: GateConfig) -> GateResult:
        """Build and gate once more."""
        # The time that is left, shared by builds to come that need timing if these stay as frequent as they were, but
        # enough to build one and to decide on it. Without the first one there is nothing to compare with.
        timings = len({build.ratio for build in self.builds} - {None}) + 1
        to_come = self.config.distribution.builds + _ACCEPTED_BUILDS + 1 - len(self.builds)
        share = self.minutes_left() / max(1.0, to_come * timings / (len(self.builds) + 1))
        enough = self.config.minutes / 2 if self._longest_build is None else 0.5 + 1.2 * self._longest_build / 60
        minutes = max(0.05, min(self.minutes_left(), max(share, enough)))
        config = replace(config, distribution=BuildShare(), register=False, minutes=minutes)
        number = len(self.builds) + 1
        result: GateResult = run_step(f"{of} build {number}", gate, model, config, **self.where)
        stored, measured = self.tracker.load(result.run_id), result.measured
        if of == "candidate":
            campaigns.append(self.table, stored)
        if measured is not None:
            self._longest_build = max(self._longest_build or 0.0, measured.candidate.build_seconds)
        tactics = campaigns.load_record(stored)
        kernels = () if measured is None else measured.candidate.kernels
        build = GatedBuild(
            number=number,
            of=of,
            decision=result.decision,
            reasons=result.reasons,
            outside=", ".join(result.subjects("refuse")),
            ratio=None if result.ratio is None else result.ratio.ratio,
            latency_ms=None if measured is None or measured.rounds is None else measured.rounds.candidate_ms,
            kernels=", ".join(f"{count} {name}" for name, count in kernels),
            tactics_sha256="" if tactics is None else tactics.digest,
            run_id=result.run_id,
        )
        self.builds.append(build)
        return result

    def fixed_to_reference(self, first: GateResult) -> GateConfig:
        """The config for builds of the candidate: compared with the accepted build of median latency, if any."""
        config, tracker = self.config, self.tracker
        releases = (config.release, *config.others, HERE)
        config = replace(config, others=releases)
        accepted = None if first.measured is None else first.measured.accepted
        # Only a whole gate shows that there is no accepted engine.
        if first.measured is None or (accepted is None and first.decision != "accept"):
            return config
        stored = tracker.info(first.holder if accepted is None else accepted.run_id)
        source = builds.load_build(tracker.load(stored.id), engine=False)
        same_model = source.spec.model_sha256 == first.measured.candidate.model_sha256
        model = self.model if same_model else find_model(tracker, stored)
        again = replace(config, build=source.spec.config, accepted=stored.id, keep_model=False)
        config = replace(config, accepted=stored.id)
        # Builds that are bad for anything but their latency or size are no reference.
        ratios: dict[str, float] = {}
        sizes: dict[str, int] = {}
        timed = config.policy.of(config.build.precision).latency is not None
        count = 0
        for release in dict.fromkeys(releases) if timed else ():
            while count < _ACCEPTED_BUILDS and self.minutes_left() > 0:
                result = self.add("accepted", model, replace(again, release=release))
                candidate = None if result.measured is None else result.measured.candidate
                version = source.engine.environment.backend_version
                if candidate is None or candidate.environment.backend_version != version:
                    break
                count += 1
                if {*result.subjects("refuse")} <= {"latency", "size"}:
                    ratios[result.holder] = 1.0 if result.ratio is None else result.ratio.ratio
                    sizes[result.holder] = candidate.engine_bytes
        if not ratios:
            return config
        _, reference = sorted((ratio, holder) for holder, ratio in ratios.items())[len(ratios) // 2]
        # Builds of one network differ in size, so the limit counts from the largest.
        policy = _with_larger_size(config, max(sizes.values()) / sizes[reference])
        return replace(config, accepted=reference, policy=policy)


def _with_larger_size(config: GateConfig, factor: float) -> Policy:
    """The policy of a gate, with the candidate's size limit multiplied by a factor."""
    limits = config.policy.of(config.build.precision)
    if limits.size is None:
        return config.policy
    larger_limits = replace(limits, size=replace(limits.size, ratio=factor * limits.size.ratio))
    return replace(config.policy, precisions={**config.policy.precisions, config.build.precision: larger_limits})


def _findings(result: DistributionResult, decision: ShareDecision) -> Iterator[Finding]:
    """The decision on the share; then the reasons of refused builds, with an example of each."""
    build_share = result.build_share
    text = (
        f"{result.outside} of {result.candidate_builds} are outside the limits: at least {_percent(result.share)} "
        f"of all builds are within, confidence {_percent(CONFIDENCE)}"
    )
    if result.unclear:
        text += f". {result.unclear} are undecided, and count as outside in this"
    if decision == "refuse":
        text += f". More than {_percent(build_share.tolerated)} of all builds are outside"
    elif decision == "open":
        text += f"; {_percent(build_share.required)} are required. Raise --builds or --minutes, or lower --share"
    outcomes: dict[str, FindingOutcome] = {"accept": "pass", "refuse": "refuse", "open": "open"}
    yield Finding("builds", outcomes[decision], text)
    for of in ("candidate", "accepted"):
        several = [build for build in result.builds if build.of == of]
        for subjects, count in Counter(build.outside for build in several if build.outside).most_common():
            example = next("; ".join(build.reasons) for build in several if build.outside == subjects)
            yield Finding(f"{of} builds", "note", f"{count} of {len(several)} refused for {example}")


def _percent(share: float) -> str:
    return f"{math.floor(share * 1000 + 1e-6) / 10:g} %"  # rounded down, since it is claimed as a lower limit
