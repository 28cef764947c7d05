"""Diff of tactics: find the tactic shared by the bad builds of a campaign and absent from the good ones.

The statistics are those of :mod:`trtops.tactics.model`. A confirmation stays valid however often one looks, so a
campaign may diff after every build: at a confidence of 95 %, at most 5 of 100 campaigns without a culprit ever name
one. For builds without an order of arrival, such as loose files, this holds for one look at a number of builds fixed
beforehand.
"""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from trtops import errors
from trtops.tactics.findings import CLEARED, Conclusion, Explanation, LayerChoice, SetDifference, Suspect, TacticDiff
from trtops.tactics.model import LOG_ONE, LOG_PAIR, Bools, Floats, Likelihood, Posterior, features_of, groups_of, weigh
from trtops.tactics.record import TacticOption
from trtops.tactics.table import ABSENT, TEXTS, By, CampaignTable, choice_texts
from trtops.verdict import PASSED

_WORTH_NAMING = 0.01  # probability below which the joint settings that decide a suspect are not searched
_CONFOUNDED = 3.0  # log-gain from which time or a machine is reported: odds of twenty to one
_WRONG_VERDICTS = 0.05  # share of the bad verdicts that may be wrong where a culprit is ruled out


def diff(
    table: CampaignTable, *, confidence: float = 0.95, by: By = "tactic", blocks: Mapping[str, str] | None = None
) -> TacticDiff:
    """Find the choices shared by the bad builds and absent from the good ones.

    Args:
        table: The campaign.
        confidence: What a confirmation needs, between 0.5 and 1.
        by: What to compare. Each is another test; several of them need a higher confidence each.
        blocks: By names of builds, where and with what each was made. Where the rate of bad builds differs between
            blocks, or changes over time, choices need evidence in addition to that.

    Raises ConfigError if the confidence is not between 0.5 and 1, or ``by`` is unknown.
    """
    if not 0.5 <= confidence < 1:
        raise errors.ConfigError(f"confidence is {confidence}; expected at least 0.5 and less than 1, such as 0.95.")
    if by not in TEXTS:
        raise errors.ConfigError(f"by is {by!r}; expected one of {', '.join(TEXTS)}. {errors.near(by, TEXTS)}")
    case = _Case(table, by)
    posterior, confounder = None, ""  # None where nothing varies, or all verdicts agree
    if case.groups.members and case.bad.any() and not case.bad.all():
        posterior = weigh(case.groups.present, case.groups.log_share, case.bad)
        gain, confounder = _find_confounder(case, blocks or {})
        posterior = replace(posterior, log_e_value=posterior.log_e_value - gain)
    hits = case.groups.present[case.bad].sum(axis=0)
    probabilities = posterior.probabilities if posterior else np.zeros(len(hits))
    # By probability, then by bad builds, then as they occurred: the last key of lexsort comes first.
    ranking = np.lexsort((np.arange(len(hits)), -hits, -probabilities))
    explanation = None
    if posterior:
        rank = dict(zip(ranking.tolist(), itertools.count()))
        explained = int(case.bad[posterior.expected_bad].sum())
        explanation = Explanation(
            clauses=tuple(sorted(tuple(sorted(rank[g] for g in clause)) for clause in posterior.best)),
            probability=posterior.p_best,
            bad_explained=explained,
            good_against=int(posterior.expected_bad.sum()) - explained,
        )
    varying_layers = []
    for column in sorted(set(case.features.column.tolist())):
        kind, name = table.columns[column]
        if kind == "layer":
            varying_layers.append(name)
    return TacticDiff(
        by=by,
        ordered=table.ordered,
        confidence=confidence,
        conclusion=_conclude(case, posterior, confidence),
        good=int((~case.bad).sum()),
        bad=int(case.bad.sum()),
        errors=table.named("error"),
        layers=len(table.layers),
        varying_layers=tuple(varying_layers),
        suspects=tuple(case.suspect(group, float(probabilities[group])) for group in ranking.tolist()),
        explanation=explanation,
        e_value_log10=posterior.log_e_value / math.log(10) if posterior else 0.0,
        p_chance=posterior.p_chance if posterior else 0.5,
        thorough=posterior is not None and _would_have_shown(case, 2, confidence),
        confounder=confounder,
        set_difference=set_difference(table),
    )


def builds_with(table: CampaignTable, suspect: Suspect) -> Bools:
    """Which builds have all choices and settings of a suspect of a diff by tactic; of shape ``(builds,)``."""
    texts, codes = choice_texts(table, "tactic")
    have: Bools = (table.codes != ABSENT).any(axis=1)  # a build without a record has nothing
    for choice in suspect.choices:
        code = ABSENT if choice.choice is None else texts.index(choice.choice)
        have &= codes[:, table.columns.index(("layer", choice.layer))] == code
    for name, value in suspect.settings:
        have &= table.has(("setting", name), value)
    return have


def set_difference(table: CampaignTable) -> tuple[SetDifference, ...]:
    """Polygraphy's difference: per layer, the choices of bad builds absent from all good ones."""
    differences = []
    good, bad = table.codes[table.with_verdict(*PASSED)], table.codes[table.with_verdict("bad")]
    for (_, name), of_good, of_bad in zip(table.columns, good.T, bad.T):
        only_bad = np.setdiff1d(of_bad, of_good)
        choices = [table.choices[code] for code in only_bad[only_bad != ABSENT]]
        if tactics := tuple(choice for choice in choices if isinstance(choice, TacticOption)):  # not of a setting
            differences.append(SetDifference(layer=name, choices=tactics))
    return tuple(differences)


class _Case:
    """The good and bad builds of a table as features, with indistinguishable features in groups."""

    def __init__(self, table: CampaignTable, by: By) -> None:
        self.table = table
        evaluated = ~table.with_verdict("error")
        self.names = tuple(itertools.compress(table.names, evaluated))
        self.bad: Bools = table.with_verdict("bad")[evaluated]
        self.texts, codes = choice_texts(table, by)
        self.features = features_of(codes[evaluated])
        self.groups = groups_of(self.features, ordered=table.ordered)
        self.is_setting = np.array([table.columns[c][0] == "setting" for c in self.features.column], np.bool_)

    def suspect(self, group: int, probability: float) -> Suspect:
        """A group in words."""
        present, bad = self.groups.present[:, group], self.bad
        members = self.groups.members[group]
        settings = self._settings(members)
        if not settings and probability > _WORTH_NAMING:
            settings = self._joint_settings(group)
        choices, absent = [], []
        for feature in members:
            code, (kind, layer) = int(self.features.code[feature]), self.table.columns[self.features.column[feature]]
            if kind == "layer" and code == ABSENT:
                absent.append(LayerChoice(layer=layer, choice=None))
            elif kind == "layer":
                choices.append(LayerChoice(layer=layer, choice=self.texts[code]))
        # A layer is absent because of what other layers or settings are, so these are named where there are any.
        if len(absent) == len(members):
            choices = absent
        return Suspect(
            choices=tuple(choices),
            settings=settings,
            good=int((present & ~bad).sum()),
            bad=int((present & bad).sum()),
            probability=probability,
        )

    def _settings(self, features: Iterable[int]) -> tuple[tuple[str, str], ...]:
        """Names and values of the settings among features."""
        return tuple(
            (self.table.columns[self.features.column[f]][1], self.texts[self.features.code[f]])
            for f in features
            if self.is_setting[f] and self.features.code[f] != ABSENT
        )

    def _joint_settings(self, group: int) -> tuple[tuple[str, str], ...]:
        """Return a minimal set of settings with exactly the group's builds in common, if any."""
        present = self.groups.present[:, group]
        settings = np.flatnonzero(self.is_setting & (self.features.code != ABSENT)).tolist()
        # Only settings of every build of the group can be in the set. If all of these together do not single the group
        # out, no subset does; if they do, each one that the others can do without is dropped.
        needed = [f for f in settings if not (present & ~self.features.present[:, f]).any()]
        if not np.array_equal(self.features.present[:, needed].all(axis=1), present):
            return ()
        for feature in list(needed):
            fewer = [f for f in needed if f != feature]
            if fewer and np.array_equal(self.features.present[:, fewer].all(axis=1), present):
                needed = fewer
        return self._settings(needed)


def _find_confounder(case: _Case, blocks: Mapping[str, str]) -> tuple[float, str]:
    """The log-gain if the rate of bad builds depends on time or on the machine, and this in words; 0 if it is small."""
    bad, builds, hits = case.bad, len(case.bad), int(case.bad.sum())
    labels = np.array([blocks.get(name, "") for name in case.names])
    splits = [(labels, 0.0)] if len(set(labels.tolist())) > 1 else []
    before = np.cumsum(bad, dtype=np.int64)[1:-2]
    if case.table.ordered and len(before):  # the change of the rate over time that explains verdicts best
        count = np.arange(2, 2 + len(before))
        best = int(np.argmax(_at_own_rate(count, before) + _at_own_rate(builds - count, hits - before))) + 2
        names = (f"the first {best} builds", f"the {builds - best} after them")
        # The best of many places to change is better than chance would be at one: half of the logarithm, as in BIC.
        splits.append((np.array(names)[(np.arange(builds) >= best).astype(int)], math.log(builds) / 2))
    gain, text = _CONFOUNDED, ""
    for parts, penalty in splits:
        split_gain, shares = -float(_at_own_rate(builds, hits)) - penalty, []
        for part in dict.fromkeys(parts):
            size, part_hits = int((parts == part).sum()), int(bad[parts == part].sum())
            split_gain += float(_at_own_rate(size, part_hits))
            shares.append(f"{part_hits} of {size} bad in {part}")
        if split_gain > gain:
            gain = split_gain
            text = f"The share of bad builds depends on more than choices: {', '.join(shares)}."
    return (gain, text) if text else (0.0, "")


def _at_own_rate(size: ArrayLike, hits: ArrayLike) -> Floats:
    """Log-probability of verdicts at their most probable rate; elementwise."""
    size, hits = np.asarray(size), np.asarray(hits)
    rate = np.clip(hits / np.maximum(size, 1), 1e-12, 1 - 1e-12)
    logs: Floats = hits * np.log(rate) + (size - hits) * np.log1p(-rate)
    return logs


def _conclude(case: _Case, posterior: Posterior | None, confidence: float) -> Conclusion:
    if not len(case.bad):
        return "no builds"
    if not case.bad.any():
        return "no bad builds"
    if case.bad.all():
        return "no good builds"
    if posterior is None:
        return "no single tactic explains this"
    if posterior.log_e_value >= -math.log(1 - confidence):
        return "confirmed" if posterior.probabilities.max() >= confidence else "narrowed down"
    # A culprit would have been confirmed by now: a single one, or where chance is less certain, even a pair.
    culprits = 1 if posterior.p_chance > CLEARED else 2
    if posterior.p_chance > 0.5 and _would_have_shown(case, culprits, confidence):
        return "no single tactic explains this"
    return "not enough runs"


def _would_have_shown(case: _Case, culprits: int, confidence: float) -> bool:
    """Whether one or two culprits would be confirmed, if they were in all bad builds of right verdict."""
    bad = int(case.bad.sum())
    likelihood = Likelihood(len(case.bad), bad)
    # As many builds have the culprit as are bad. A few of those are good, and as many bad builds do not have it.
    hits = bad - int(_WRONG_VERDICTS * bad)
    prior = (LOG_ONE if culprits == 1 else LOG_PAIR) - culprits * math.log(len(case.groups.members))
    log_e_value = prior + float(likelihood(np.int64(bad), np.int64(hits))) - likelihood.supremum
    return log_e_value >= -math.log(1 - confidence)
