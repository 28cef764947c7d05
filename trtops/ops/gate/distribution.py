"""The gate on builds: a decision on the share of a candidate's builds within the limits."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trtops import errors
from trtops.ops.campaign.diff_tactics import diff_body, log_diff
from trtops.ops.gate.measurement import GateSession
from trtops.ops.gate.op import end_gate, gate, registered
from trtops.ops.gate.policy import GateConfig, Policy
from trtops.ops.gate.releases import HERE, name_of
from trtops.ops.gate.result import EVIDENCE, Decision, Finding, FindingOutcome, GateResult
from trtops.ops.gate.tolerance import CONFIDENCE, BuildShare, ShareDecision, decide_share, shown_share
from trtops.ops.result import model_file, op_run, run_step
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
    model: str | Path,
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
    began, path, build_share = time.perf_counter(), model_file(model), config.distribution
    experiment = experiment or path.stem
    name = f"gate {path.stem} {config.build.precision} {name_of(config.release)}, {build_share.builds} builds"
    with (
        op_run(tracker, experiment, name, kind="gate_builds", model=path, tags=tags, parent=parent) as op,
        GateSession() as session,
    ):
        run = op.run
        run.log_params({"release": name_of(config.release), "policy": config.policy.digest, **build_share.to_dict()})
        gated_builds: list[GatedBuild] = []
        build_seconds: list[float] = []
        table = CampaignTable()
        max_builds = build_share.builds + _ACCEPTED_BUILDS + 1

        def minutes_left() -> float:
            return max(0.0, config.minutes - (time.perf_counter() - began) / 60)

        def build(of: str, file: Path, build_config: GateConfig) -> GateResult:
            # The time that is left, shared by builds to come that need timing if these stay as frequent as they were,
            # but enough to build one and to decide on it. Without the first one there is nothing to compare with.
            timings = len({gated.ratio for gated in gated_builds} - {None}) + 1
            coming = max(1.0, (max_builds - len(gated_builds)) * timings / (len(gated_builds) + 1))
            enough = 0.5 + 1.2 * max(build_seconds) / 60 if build_seconds else config.minutes / 2
            minutes = max(0.05, min(minutes_left(), max(minutes_left() / coming, enough)))
            build_config = replace(build_config, distribution=BuildShare(), register=False, minutes=minutes)
            where = {"tracker": tracker, "experiment": experiment, "tags": tags, "parent": run.id}
            number = len(gated_builds) + 1
            decided = run_step(f"{of} build {number}", gate, file, build_config, session=session, **where)  # type: ignore[arg-type]
            gated_builds.append(_gated(number, of, decided, tracker, table if of == "candidate" else CampaignTable()))
            build_seconds.extend([decided.measured.candidate.build_seconds] if decided.measured else [])
            return decided

        first = build("first", path, config)  # finds the accepted engine, and shows whether the data prove anything
        reference, releases = config.accepted, (config.release, *config.others, HERE)
        policy = config.policy
        is_stopped = any((finding.subject, finding.outcome) in _STOPS for finding in first.findings)
        accepted = None if first.measured is None else first.measured.accepted
        # Only a whole gate shows that there is no accepted engine.
        if first.measured is not None and (accepted is not None or first.decision == "accept"):
            stored = tracker.info(first.holder if accepted is None else accepted.run_id)
            source = builds.load_build(tracker.load(stored.id), engine=False)
            same_model = source.spec.model_sha256 == first.measured.candidate.model_sha256
            file = path if same_model else find_model(tracker, stored)
            again = replace(config, build=source.spec.config, accepted=stored.id, others=releases, keep_model=False)
            rebuilt: list[GateResult] = []
            timed = config.policy.of(config.build.precision).latency is not None
            for release in dict.fromkeys(releases) if timed else ():
                while len(rebuilt) < _ACCEPTED_BUILDS and minutes_left() > 0:
                    gate_result = build("accepted", file, replace(again, release=release))
                    version = gate_result.measured and gate_result.measured.candidate.environment.backend_version
                    if version != source.engine.environment.backend_version:
                        break
                    rebuilt.append(gate_result)
            reference = stored.id
            # Builds that are bad for anything but their latency or size are no reference.
            varies = {"latency", "size"}
            done = [r for r in rebuilt if r.measured]
            sound = [r for r in done if {f.subject for f in r.findings if f.outcome == "refuse"} <= varies]
            timings = [(1.0 if r.ratio is None else r.ratio.ratio, r.holder) for r in sound]
            if timings:
                reference = sorted(timings)[len(timings) // 2][1]
                # Builds of one network differ in size, so the limit counts from the largest.
                sizes = {r.holder: r.measured.candidate.engine_bytes for r in sound if r.measured}
                policy = _with_larger_size(config, max(sizes.values()) / sizes[reference])
        fixed = replace(config, accepted=reference, others=releases, policy=policy)
        holder, outside, unclear = "", 0, 0
        decision: ShareDecision = "open"
        while not is_stopped and decision == "open" and len(table) < build_share.builds and minutes_left() > 0:
            gate_result = build("candidate", path, replace(fixed, keep_model=config.keep_model and not holder))
            if (
                fixed.accepted is None
                and gate_result.decision == "accept"
                and gate_result.measured
                and not gate_result.measured.accepted
            ):
                fixed = replace(fixed, accepted=gate_result.holder)
            outside += gate_result.verdict == "bad"
            unclear += gate_result.verdict not in ("good", "bad")
            holder = holder or (gate_result.holder if gate_result.verdict == "good" else "")
            decision = decide_share(build_share, len(table), outside, unclear)
        share = (
            build_share.required if decision == "accept" else shown_share(build_share, len(table), outside + unclear)
        )
        result = DistributionResult(
            title=f"gate {path.name} {config.build.precision} {name_of(config.release)}, {build_share.builds} builds",
            subject=str(path),
            findings=first.findings,
            policy=config.policy,
            precision=config.build.precision,
            release=name_of(config.release),
            holder=holder,
            seconds=time.perf_counter() - began,
            build_share=build_share,
            candidate_builds=len(table),
            outside=outside,
            unclear=unclear,
            share=share,
            builds=tuple(gated_builds),
            reference=reference or "",
            tactics=diff(table),
        )
        if not is_stopped:
            result = replace(result, findings=tuple(_findings(result, decision)))
        run.log_table(schema.Artifact.GATE_TABLE, tuple(_BUILD_COLUMNS.values()), (list(row) for row in result.rows()))
        log_diff(run, result.tactics)
        run.set_tags({schema.Tag.EVIDENCE: holder} if holder else {})
        result = end_gate(op, result)
    return registered(result, config, tracker)


def _with_larger_size(config: GateConfig, factor: float) -> Policy:
    """The policy of a gate, with the candidate's size limit multiplied by a factor."""
    limits = config.policy.of(config.build.precision)
    if limits.size is None:
        return config.policy
    larger_limits = replace(limits, size=replace(limits.size, ratio=factor * limits.size.ratio))
    return replace(config.policy, precisions={**config.policy.precisions, config.build.precision: larger_limits})


def _gated(number: int, of: str, gate_result: GateResult, tracker: Tracker, table: CampaignTable) -> GatedBuild:
    """The record of a build; also appends the build to a table of tactics."""
    stored, measured = tracker.load(gate_result.run_id), gate_result.measured
    campaigns.append(table, stored)
    tactics = campaigns.load_record(stored)
    kernels = () if measured is None else measured.candidate.kernels
    return GatedBuild(
        number=number,
        of=of,
        decision=gate_result.decision,
        reasons=gate_result.reasons,
        outside=", ".join(
            dict.fromkeys(finding.subject for finding in gate_result.findings if finding.outcome == "refuse")
        ),
        ratio=None if gate_result.ratio is None else gate_result.ratio.ratio,
        latency_ms=None if measured is None or measured.rounds is None else measured.rounds.candidate_ms,
        kernels=", ".join(f"{count} {name}" for name, count in kernels),
        tactics_sha256="" if tactics is None else tactics.digest,
        run_id=gate_result.run_id,
    )


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
