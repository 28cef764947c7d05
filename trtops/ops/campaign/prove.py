"""Proof by swap: put a suspect into a good build, take it out of a bad one, and compare the verdicts.

Statistics show which tactic the bad builds have in common; only an intervention shows that it makes them bad. There are
four kinds of builds, each a replay: the good build and the bad one unchanged (does a replay repeat the verdict at
all?), the good one with only the suspect put in, and the bad one with only the suspect taken out.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, TypeAlias

import numpy as np

from trtops import errors
from trtops.next_step import NextStep
from trtops.ops.arguments import checked_arguments
from trtops.ops.campaign.bisection_planner import most_alike
from trtops.ops.campaign.config import Campaign
from trtops.ops.campaign.iteration import CampaignBuilder, EngineEvaluator, tested_aspect, verdict_in
from trtops.ops.campaign.mixture import Mixture
from trtops.ops.campaign.open_campaign import open_campaign
from trtops.ops.registry.deny import deny
from trtops.ops.result import OnProgress, OpResult, op_run, run_step, tracker_or_default
from trtops.record import Config, Record, setting
from trtops.system.worker import kept_workers
from trtops.tables import counted
from trtops.tactics.denied import DeniedTactic
from trtops.tactics.diff import builds_with, diff
from trtops.tactics.findings import Suspect
from trtops.tactics.model import Bools
from trtops.tactics.record import Column
from trtops.tracking import campaigns, schema
from trtops.tracking.base import Tracker, Verdict
from trtops.verdict import PASSED

ProofOutcome: TypeAlias = Literal["confirmed", "refuted", "not isolable"]
Swap: TypeAlias = Literal["good as it was", "bad as it was", "in", "out"]

# For each kind of build: its description, the build that it starts from, and whether it has the suspect.
_SWAPS: dict[Swap, tuple[str, Literal["good", "bad"], bool]] = {
    "good as it was": ("the good one, replayed", "good", False),
    "bad as it was": ("the bad one, replayed", "bad", True),
    "in": ("the good one, suspect put in", "good", True),
    "out": ("the bad one, suspect taken out", "bad", False),
}


@dataclass(frozen=True, kw_only=True)
class ProveConfig(Config):
    """The suspect, and the number of builds.

    Attributes:
        suspect: Position among the diff's suspects (default: those of the most probable explanation).
        repeats: Builds with the suspect put in, and as many with it taken out. A replay makes the same engine each time
            as far as it can, so these also show whether the verdict is stable.
        deny: Put the suspect on the deny-list if it is confirmed.
        devices: GPUs to build on, as ``CUDA_VISIBLE_DEVICES`` names them (default: the campaign's).
        allow_scripts: Run scripts and commands that the campaign's run names. Anyone with write access to the store can
            change them.
    """

    suspect: int | None = None
    repeats: int = setting(3, least=1)
    deny: bool = True
    devices: tuple[str, ...] = ()
    allow_scripts: bool = False


@dataclass(frozen=True, kw_only=True)
class ProofTrial(Record):
    """One build of a proof, with the verdict in the aspect under test, outputs or precision.

    ``followed`` is whether the suspect's layers got what was requested; ``also_changed`` are other layers that differ
    from the build it started from.
    """

    swap: Swap
    run_id: str
    verdict: Verdict
    followed: bool
    also_changed: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class ProveResult(OpResult):
    """The outcome of a proof: ``not isolable`` if the swap could not be made, or not alone.

    ``deny_run`` is the new entry of the deny-list, and ``denied`` are its tactics.
    """

    is_named_by_outcome = True

    title: str = "prove"
    outcome: ProofOutcome
    summary: str
    suspect: str
    good_run: str
    bad_run: str
    trials: tuple[ProofTrial, ...]
    deny_run: str | None = None
    denied: tuple[str, ...] = ()
    own_limits: bool = False  # whether only limits or a check of the campaign's own find the builds bad
    backend: str = ""

    @property
    def verdict(self) -> Verdict:
        """``good`` if the suspicion is confirmed."""
        return "good" if self.outcome == "confirmed" else "bad"

    @property
    def next_step(self) -> NextStep | None:
        """Pin the good build of the swap, unless its data proves nothing."""
        is_good = any(trial.swap == "good as it was" and trial.verdict == "good" for trial in self.trials)
        if not (self.run_id and self.outcome == "confirmed" and is_good):
            return super().next_step
        return NextStep("runs promote", {"run": self.good_run})

    @property
    def because(self) -> tuple[str, ...]:
        """The outcome in sentences, and where the suspect is denied."""
        return (self.summary, *(["It is on the deny-list now"] if self.deny_run else []))

    @property
    def figures(self) -> str:
        """The number of builds."""
        return counted(len(self.trials), "build")

    def body(self) -> Iterable[str]:
        """The suspect, the outcome in sentences, and a row for each build."""
        yield from (f"Suspect: {self.suspect}", "", self.summary, "")
        yield from ("| build | verdict | swap followed | also changed | run |", "|---|---|---|---|---|")
        for trial in self.trials:
            changed_layers = ", ".join(f"`{layer}`" for layer in trial.also_changed[:5])
            followed = "yes" if trial.followed else "no"
            yield f"| {_SWAPS[trial.swap][0]} | {trial.verdict} | {followed} | {changed_layers} | `{trial.run_id}` |"
        if self.deny_run is not None:
            yield from ("", f"It is on the deny-list now, by run `{self.deny_run}`.")
            step = NextStep("runs pardon", {"run": self.deny_run, "why": "REASON"})
            yield f"`{step}` removes it."
        elif self.own_limits:
            step = NextStep("runs deny", {"run": self.run_id})
            yield from ("", "It is not on the deny-list, since only the campaign's own limits or check find it bad.")
            yield f"`{step}` denies it for all builds."


@checked_arguments
@kept_workers()
def prove(
    campaign_run: str,
    config: ProveConfig | None = None,
    *,
    tracker: Tracker | None = None,
    tags: Mapping[str, str] | None = None,
    evaluate: EngineEvaluator | None = None,
    progress: OnProgress | None = None,
) -> ProveResult:
    """Swap a suspect into a good build and out of a bad one of its campaign.

    Args:
        campaign_run: The campaign's run.
        config: The suspect, and the number of builds.
        tracker: The tracking store.
        tags: Further tags of all runs.
        evaluate: The Python callable that evaluated the campaign's engines, if one did.
        progress: Called after each build.

    Raises ConfigError if the campaign suspects nothing, or has no good build without the suspect or no bad one with it.

    >>> campaign = trtops.debug_build("gpu_model.onnx", config)  # doctest: +SKIP
    >>> trtops.prove(campaign.run_id).headline  # doctest: +SKIP
    'confirmed'
    """
    tracker = tracker_or_default(tracker)
    config = ProveConfig() if config is None else config
    campaign = open_campaign(tracker, campaign_run, allow_scripts=config.allow_scripts).on(config.devices)
    campaign = replace(campaign, tags=tuple((tags or {}).items()))
    builder = CampaignBuilder(campaign, tracker, evaluate)
    suspect, together, mixture = _choose_suspect(campaign, config, tracker)
    columns: set[Column] = {("layer", choice.layer) for choice in suspect.choices}
    columns |= {("setting", name) for name, _ in suspect.settings}
    swapped = np.array([unit.column in columns for unit in mixture.units], np.bool_)
    if not swapped.any():
        raise errors.ConfigError(f"{suspect.describe()} follows from other choices, so nothing can be swapped.")
    name, entry, trials = f"proof of {suspect.describe()}", None, []
    # Put in and taken out by turns, so that a drift of the machine is not an effect.
    plan: list[Swap] = ["good as it was", "bad as it was"]
    for _ in range(config.repeats):
        plan += ["in", "out"]
    with op_run(tracker, campaign.experiment, name, kind="proof", tags=tags, parent=campaign.run_id) as op:
        run = op.run
        run.log_params({"suspect": suspect.describe()[: schema.MAX_PARAM], "repeats": config.repeats})
        for swap in plan:
            trials.append(_make_trial(swap, suspect, swapped, mixture, builder, run.id))
            if progress is not None:
                progress(len(trials), len(plan))
        outcome, summary = conclude(trials)
        result = ProveResult(
            outcome=outcome,
            summary=summary,
            suspect=suspect.describe(),
            good_run=mixture.good.info.id,
            bad_run=mixture.bad.info.id,
            trials=tuple(trials),
        )
        # The deny-list takes each layer by itself, and of layers that fail only together none fails by itself.
        # Settings it takes together.
        if suspect.settings or not together:
            denied = {column for column in columns if column[0] == "setting" or not together}
            made_bad = next((t.run_id for t in trials if t.swap == "in" and t.verdict == "bad"), None)
            if outcome == "confirmed" and config.deny and made_bad is not None:
                by_default = run_step("check limits", builder.bad_by_default_limits, tracker.load(made_bad))
                result = replace(result, own_limits=not by_default)
            entry = DeniedTactic.of(mixture.bad_tactics, denied, run.id)
            run.log_json(entry, schema.Artifact.DENIED)
        run.set_tags({schema.Tag.PROOF: outcome})
        result = op.finish(result, artifact=schema.Artifact.PROOF, title=name, evaluated=False)
    if outcome == "confirmed" and config.deny and entry is not None and not result.own_limits:
        tactics = tuple(dict.fromkeys(choice.tactic for choice in entry.choices))
        denied_by = deny(run.id, tracker=tracker, tags=tags).run_id
        backend = campaign.config.build.backend
        return replace(result, deny_run=denied_by, denied=tactics, backend=backend)
    return result


def _choose_suspect(campaign: Campaign, config: ProveConfig, tracker: Tracker) -> tuple[Suspect, bool, Mixture]:
    """The suspect to prove, True for several suspects failing only together, and the two most similar builds."""
    table = campaigns.load_table(tracker, campaign.run_id)
    blocks = {name: campaigns.made_on(tracker.info(name)) for name in table.names}
    tactic_diff = diff(table, confidence=campaign.config.confidence, blocks=blocks)
    clause: Sequence[int] = (config.suspect or 0,)
    if config.suspect is None and tactic_diff.explanation is not None and tactic_diff.explanation.clauses:
        clause = tactic_diff.explanation.clauses[0]
    if not all(0 <= i < len(tactic_diff.suspects) for i in clause):
        raise errors.ConfigError(
            f"There is no suspect {config.suspect or 0}: the diff has {len(tactic_diff.suspects)}. "
            f"{tactic_diff.summary}"
        )
    several = [tactic_diff.suspects[i] for i in clause]
    suspect = replace(
        several[0],
        choices=tuple(chain.from_iterable(member.choices for member in several)),
        settings=tuple(dict.fromkeys(chain.from_iterable(member.settings for member in several))),
    )
    have = builds_with(table, suspect)
    good, bad = table.with_verdict(*PASSED) & ~have, table.with_verdict("bad") & have
    if not good.any() or not bad.any():
        lacking = "bad build with" if good.any() else "good build without"
        raise errors.ConfigError(f"There is no {lacking} {suspect.describe()}, so nothing can be swapped. Build more.")
    return suspect, len(several) > 1, Mixture(*(tracker.load(name) for name in most_alike(table, good, bad)))


def _make_trial(
    swap: Swap, suspect: Suspect, swapped: Bools, mixture: Mixture, builder: CampaignBuilder, parent: str
) -> ProofTrial:
    """Make one build of a proof; ``swapped`` are the suspect's units among the mixture's."""
    name, start, has_suspect = _SWAPS[swap]
    taken: Bools = np.where(swapped, has_suspect, start == "bad")
    runs = (mixture.good.info.id, mixture.bad.info.id)
    evidence = " ".join(runs if start == "good" else runs[::-1])  # the build that it starts from comes first
    tags = {schema.Tag.TRIAL: swap, schema.Tag.EVIDENCE: evidence}
    built = builder.build(mixture.request(taken, start=start), name, parent=parent, tags=tags)
    outcome = mixture.outcome(taken, built.tactics)
    suspect_units = {unit.name for unit in itertools.compress(mixture.units, swapped)}
    strayed = suspect_units & set(outcome.strayed)
    if built.tactics is not None:
        # The suspect's layers may include some that follow from its units.
        expected = mixture.bad_tactics if has_suspect else mixture.good_tactics
        strayed |= {choice.layer for choice in suspect.choices} & set(built.tactics.differing_layers(expected))
    return ProofTrial(
        swap=swap,
        run_id=built.run_id,
        verdict=verdict_in(tested_aspect(mixture.bad.info), builder.tracker.info(built.run_id)) or built.verdict,
        followed=built.tactics is not None and not strayed,
        also_changed=tuple(name for name in (*outcome.strayed, *outcome.also_changed) if name not in suspect_units),
        reason="; ".join(built.reasons)[:1000],
    )


def conclude(trials: Iterable[ProofTrial]) -> tuple[ProofOutcome, str]:
    """The outcome of a proof's builds, and the reason in words."""
    by: dict[Swap, list[ProofTrial]] = {}
    for trial in trials:
        by.setdefault(trial.swap, []).append(trial)
    controls: tuple[Swap, ...] = ("good as it was", "bad as it was")
    for swap in controls:
        control, expected = by[swap][0], _SWAPS[swap][1]
        if control.verdict != expected:
            reason = f"is {control.verdict} when its tactics are replayed{_reason_text(control)}"
            return "not isolable", f"The {expected} build {reason}, so tactics do not decide the verdict."
    swapped = [*by["in"], *by["out"]]
    strayed = next((t for t in swapped if not t.followed or t.verdict == "error"), None)
    if strayed is not None:
        reason = f"the replay was not followed{_reason_text(strayed)}"
        return "not isolable", f"The suspect could not be swapped {strayed.swap}: {reason}."
    bad_in = sum(trial.verdict == "bad" for trial in by["in"])
    good_out = sum(trial.verdict == "good" for trial in by["out"])
    counted = (
        f"put into a good build, {bad_in} of {len(by['in'])} bad; taken out of a bad one, {good_out} of "
        f"{len(by['out'])} good"
    )
    if bad_in not in (0, len(by["in"])) or good_out not in (0, len(by["out"])):
        return "not isolable", f"Equal tactics gave good and bad builds: {counted}. Is the check repeatable?"
    others = sorted(set(chain.from_iterable(trial.also_changed for trial in swapped)))
    if others and bad_in:
        other_changes = f"Layers that changed with it: {', '.join(others[:5])}{' and more' if len(others) > 5 else ''}."
        return "not isolable", f"The suspect was not swapped alone, so nothing is proved: {counted}. {other_changes}"
    if bad_in:
        other_fault = "" if good_out else "; the bad build has something else wrong as well"
        return "confirmed", f"Confirmed: {counted}{other_fault}."
    if good_out:
        return "not isolable", f"It fails only together with something else: {counted}."
    return "refuted", f"Refuted: {counted}."


def _reason_text(trial: ProofTrial) -> str:
    return f" ({trial.reason[:300]})" if trial.reason else ""
