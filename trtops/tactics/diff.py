"""Compares the good and the bad builds of a campaign: which tactic do the bad ones share that the good ones lack?

The statistics are those of :mod:`trtops.tactics.model`. A confirmation stays valid however often one looks, so a
campaign may diff after every build: at a confidence of 95 %, at most 5 of 100 campaigns without a culprit ever name
one. For builds without an order of arrival, such as loose files, this holds for one look at a number of builds fixed
beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from trtops import errors
from trtops.tactics import report
from trtops.tactics.choice_keys import TEXTS, By, Features, choice_texts, features_of, groups_of
from trtops.tactics.findings import (
    CLEARED,
    Conclusion,
    Explanation,
    LayerChoice,
    SetDifference,
    Suspect,
    TacticDiff,
)
from trtops.tactics.model import Bools, Evidence, Floats, Ints, Likelihood, fisher_test, log_prior, weigh
from trtops.tactics.table import ABSENT, CampaignTable
from trtops.verdict import VERDICTS

_WORTH_NAMING = 0.01  # probability below which the joint settings that decide a suspect are not searched
_CONFOUNDED = 3.0  # log-gain from which time or a machine is reported: odds of twenty to one
_WRONG_VERDICTS = 0.05  # share of the bad verdicts that may be wrong where a culprit is ruled out


def diff(
    table: CampaignTable, *, confidence: float = 0.95, by: By = "tactic", blocks: Mapping[str, str] | None = None
) -> TacticDiff:
    """Find what the bad builds have in common and the good ones lack.

    Each ``by`` is another test; several of them need a higher confidence each.

    Args:
        table: The campaign.
        confidence: What a confirmation needs, between 0.5 and 1.
        by: What to compare: the layers' tactics, tensor formats, precisions, or tactics with their formats.
        blocks: By names of builds, where and with what each was made. Where the rate of bad builds differs between
            blocks, or changes over time, choices need evidence in addition to that.

    Raises:
        ConfigError: If the confidence is not between 0.5 and 1, or ``by`` is unknown.
    """
    if not 0.5 <= confidence < 1:
        raise errors.ConfigError(f"confidence is {confidence}; expected at least 0.5 and less than 1, such as 0.95.")
    if by not in TEXTS:
        raise errors.ConfigError(f"by is {by!r}; expected one of {', '.join(TEXTS)}. {errors.near(by, TEXTS)}")
    case = _Case(table, by)
    found, confounder = None, None
    if case.groups.members and case.bad.any() and not case.bad.all():
        found = weigh(case.groups.present, case.groups.log_share, case.bad)
        confounder = _find_confounder(case, blocks or {})
        if confounder is not None:
            found = replace(found, log_e_value=found.log_e_value - confounder.gain)
    hits = case.groups.present[case.bad].sum(axis=0)
    probabilities = found.probabilities if found else np.zeros(len(hits))
    ranking = np.lexsort((np.arange(len(hits)), -hits, -probabilities))
    conclusion = _conclude(case, found, confidence)
    result = TacticDiff(
        by=by,
        ordered=table.ordered,
        confidence=confidence,
        conclusion=conclusion,
        good=int((~case.bad).sum()),
        bad=int(case.bad.sum()),
        errors=table.named("error"),
        layers=len(table.layers),
        varying_layers=tuple(table.layers[i] for i in sorted({c for c in case.features.column.tolist() if c >= 0})),
        suspects=_describe_suspects(case, ranking, probabilities, confidence),
        explanation=_describe_explanation(case, found, ranking) if found else None,
        e_value_log10=found.log_e_value / math.log(10) if found else 0.0,
        p_chance=found.p_chance if found else 0.5,
        thorough=found is not None and _would_have_shown(case, 2, confidence),
        confounder=confounder.describe() if confounder else "",
        contradicting=_count_contradicting(case),
        set_difference=set_difference(table),
    )
    return replace(result, summary=report.summary(result))


def builds_with(table: CampaignTable, suspect: Suspect, *, by: By = "tactic") -> tuple[str, ...]:
    """Names of the builds that have all of a suspect's choices and settings, in the table's order."""
    texts, translate = choice_texts(table.choices, by)
    having = (table.codes != ABSENT).any(axis=1)  # a build without a record has nothing
    for choice in suspect.choices:
        code = ABSENT if choice.choice is None else texts.index(choice.choice)
        having &= translate[table.codes[:, table.layers.index(choice.layer)]] == code
    for name, value in suspect.settings:
        having &= table.setting_codes[:, table.settings.index(name)] == table.values.index(value)
    return tuple(name for name, has in zip(table.names, having) if has)


def set_difference(table: CampaignTable) -> tuple[SetDifference, ...]:
    """The difference that Polygraphy prints: per layer, the choices of bad builds that no good build has."""
    made = {}
    for verdict in ("good", "bad"):
        codes = table.codes[table.verdicts == VERDICTS.index(verdict)]
        mask = np.zeros((codes.shape[1], len(table.choices) + 1), np.bool_)
        mask[np.arange(codes.shape[1]), codes] = True  # the code -1 of an absent layer marks the last column
        made[verdict] = mask[:, :-1]
    only_bad = made["bad"] & ~made["good"]
    choices = table.choices
    return tuple(
        SetDifference(layer=layer, choices=tuple(choices[code] for code in np.flatnonzero(row)))
        for layer, row in zip(table.layers, only_bad)
        if row.any()
    )


class _Case:
    """The evaluated builds of a table, as features. Settings have the columns -1, -2, and so on."""

    def __init__(self, table: CampaignTable, by: By) -> None:
        self.table = table
        judged = table.verdicts != VERDICTS.index("error")
        self.names = [name for name, is_judged in zip(table.names, judged) if is_judged]
        self.bad: Bools = table.verdicts[judged] == VERDICTS.index("bad")
        self.texts, translate = choice_texts(table.choices, by)
        self.codes = translate[table.codes[judged]]
        self.setting_codes = table.setting_codes[judged]
        layers, settings = features_of(self.codes), features_of(self.setting_codes)
        self.features = Features(
            present=np.hstack((layers.present, settings.present)),
            column=np.concatenate((layers.column, -1 - settings.column)),
            code=np.concatenate((layers.code, settings.code)),
            birth=np.concatenate((layers.birth, settings.birth)),
        )
        self.groups = groups_of(self.features, ordered=table.ordered)

    def choices(self, group: int) -> tuple[LayerChoice, ...]:
        """A group's layers and choices. Absent layers follow from others, and count only if alone."""
        members = [f for f in self.groups.members[group] if self.features.column[f] >= 0]
        present = [f for f in members if self.features.code[f] != ABSENT]
        is_setting = len(members) < len(self.groups.members[group])
        chosen = []
        for feature in present or ([] if is_setting else members):
            code, layer = int(self.features.code[feature]), self.table.layers[self.features.column[feature]]
            chosen.append(LayerChoice(layer=layer, choice=None if code == ABSENT else self.texts[code]))
        return tuple(chosen)

    def settings(self, features: list[int] | tuple[int, ...]) -> tuple[tuple[str, str], ...]:
        """Names and values of the settings among features."""
        return tuple(
            (self.table.settings[-1 - self.features.column[f]], self.table.values[self.features.code[f]])
            for f in features
            if self.features.column[f] < 0 and self.features.code[f] != ABSENT
        )

    def joint_settings(self, group: int) -> tuple[tuple[str, str], ...]:
        """A minimal set of settings that occur together in exactly the builds of the group, if any."""
        present = self.groups.present[:, group]
        settings = np.flatnonzero((self.features.column < 0) & (self.features.code != ABSENT)).tolist()
        # Only settings of every build of the group can be in the set. If all of these together do not single the group
        # out, no subset does; if they do, each one that the others can do without is dropped.
        needed = [f for f in settings if not (present & ~self.features.present[:, f]).any()]
        if not np.array_equal(self.features.present[:, needed].all(axis=1), present):
            return ()
        for feature in list(needed):
            fewer = [f for f in needed if f != feature]
            if fewer and np.array_equal(self.features.present[:, fewer].all(axis=1), present):
                needed = fewer
        return self.settings(needed)


@dataclass(frozen=True)
class _Confounder:
    """A cause other than choices: the log-gain of a rate for each part, and the parts' names, builds and bad builds."""

    gain: float
    parts: tuple[tuple[str, int, int], ...]

    def describe(self) -> str:
        parts = [f"{bad} of {builds} bad in {name}" for name, builds, bad in self.parts]
        return f"The share of bad builds depends on more than choices: {', '.join(parts)}."


def _find_confounder(case: _Case, blocks: Mapping[str, str]) -> _Confounder | None:
    """Time or a machine, if the rate of bad builds depends on it."""
    bad, builds, hits = case.bad, len(case.bad), int(case.bad.sum())
    found = []
    before = np.cumsum(bad, dtype=np.int64)[1:-2]
    if case.table.ordered and len(before):  # the change of the rate over time that explains verdicts best
        count = np.arange(2, 2 + len(before))
        gains = _at_own_rate(count, before) + _at_own_rate(builds - count, hits - before) - _at_own_rate(builds, hits)
        best = int(np.argmax(gains))
        k, m = int(count[best]), int(before[best])
        parts: tuple[tuple[str, int, int], ...] = (
            (f"the first {k} builds", k, m),
            (f"the {builds - k} after them", builds - k, hits - m),
        )
        # The best of many places to change is better than chance would be at one: half of the logarithm, as in BIC.
        found.append(_Confounder(float(gains[best]) - math.log(builds) / 2, parts))
    labels = np.array([blocks.get(name, "") for name in case.names])
    if len(set(labels.tolist())) > 1:
        groups = [(label, labels == label) for label in dict.fromkeys(labels.tolist())]
        parts = tuple((label, int(has.sum()), int(bad[has].sum())) for label, has in groups)
        apart = sum(float(_at_own_rate(size, part_hits)) for _, size, part_hits in parts)
        found.append(_Confounder(apart - float(_at_own_rate(builds, hits)), parts))
    shown = [confounder for confounder in found if confounder.gain > _CONFOUNDED]
    return max(shown, key=lambda confounder: confounder.gain, default=None)


def _at_own_rate(size: ArrayLike, hits: ArrayLike) -> Floats:
    """Log-probability of verdicts at the rate that makes them most probable; elementwise."""
    size, hits = np.asarray(size), np.asarray(hits)
    rate = np.clip(hits / np.maximum(size, 1), 1e-12, 1 - 1e-12)
    logs: Floats = hits * np.log(rate) + (size - hits) * np.log1p(-rate)
    return logs


def _describe_suspects(case: _Case, ranking: Ints, probabilities: np.ndarray, confidence: float) -> tuple[Suspect, ...]:
    from scipy import special

    builds, bad = len(case.bad), int(case.bad.sum())
    size, hits = case.groups.present.sum(axis=0), case.groups.present[case.bad].sum(axis=0)
    p_values = fisher_test(size, hits, builds, bad)
    tail = (1 - confidence) / 2
    low = np.where(hits > 0, special.betaincinv(hits + 0.5, size - hits + 0.5, tail), 0.0)
    high = np.where(hits < size, special.betaincinv(hits + 0.5, size - hits + 0.5, 1 - tail), 1.0)
    suspects = []
    for g in ranking.tolist():
        n, m = int(size[g]), int(hits[g])
        settings = case.settings(case.groups.members[g])
        if not settings and probabilities[g] > _WORTH_NAMING:
            settings = case.joint_settings(g)
        suspects.append(
            Suspect(
                choices=case.choices(g),
                settings=settings,
                good=n - m,
                bad=m,
                good_without=builds - bad - n + m,
                bad_without=bad - m,
                p_bad=m / n,
                p_bad_low=float(low[g]),
                p_bad_high=float(high[g]),
                p_value=float(p_values[g]),
                probability=float(probabilities[g]),
            )
        )
    return tuple(suspects)


def _describe_explanation(case: _Case, found: Evidence, ranking: Ints) -> Explanation:
    place = {int(group): position for position, group in enumerate(ranking)}
    explained = int(case.bad[found.expected_bad].sum())
    return Explanation(
        clauses=tuple(sorted(tuple(sorted(place[g] for g in clause)) for clause in found.best)),
        probability=found.p_whole,
        bad_explained=explained,
        bad_unexplained=int(case.bad.sum()) - explained,
        good_against=int(found.expected_bad.sum()) - explained,
    )


def _conclude(case: _Case, found: Evidence | None, confidence: float) -> Conclusion:
    if not len(case.bad):
        return "no builds"
    if not case.bad.any():
        return "no bad builds"
    if case.bad.all():
        return "no good builds"
    if found is None:
        return "no single tactic explains this"
    if found.log_e_value >= -math.log(1 - confidence):
        return "confirmed" if found.probabilities.max() >= confidence else "narrowed down"
    # A culprit would have been confirmed by now: a single one, or where chance is less certain, even a pair.
    culprits = 1 if found.p_chance > CLEARED else 2
    if found.p_chance > 0.5 and _would_have_shown(case, culprits, confidence):
        return "no single tactic explains this"
    return "not enough runs"


def _would_have_shown(case: _Case, culprits: int, confidence: float) -> bool:
    """Whether one or two culprits would be confirmed, if they were in all bad builds of right verdict."""
    bad = int(case.bad.sum())
    likelihood = Likelihood(len(case.bad), bad)
    # As many builds have the culprit as are bad. A few of those are good, and as many bad builds do not have it.
    hits = bad - int(_WRONG_VERDICTS * bad)
    prior = log_prior(culprits, np.full(culprits, -math.log(len(case.groups.members))))
    log_e_value = prior + float(likelihood(np.int64(bad), np.int64(hits))) - likelihood.supremum
    return log_e_value >= -math.log(1 - confidence)


def _count_contradicting(case: _Case) -> int:
    rows = np.ascontiguousarray(np.hstack((case.codes, case.setting_codes)))
    verdicts: dict[bytes, list[int]] = {}
    for row, bad in zip(rows, case.bad.tolist()):
        verdicts.setdefault(row.tobytes(), [0, 0])[bad] += 1
    return sum(good + bad for good, bad in verdicts.values() if good and bad)
