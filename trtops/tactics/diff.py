"""Which tactic is guilty: statistics over the good and the bad builds of a campaign.

Everything follows from the table; the methods and their sources are in :mod:`trtops.tactics.evidence`. A conviction rests
on evidence that stays valid however often one looks, so a campaign may diff after every build and stop when
:func:`decided` says so: at a confidence of 95 %, at most 5 of 100 campaigns without a culprit ever accuse one. Builds
without an order of arrival, as from loose files, count the same in any order. There the 5 of 100 hold for one look at a
number of builds fixed beforehand, and nothing is ever decided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from trtops import errors
from trtops.tactics import evidence, report
from trtops.tactics.confounders import Confounder, blocked, drift
from trtops.tactics.evidence import Evidence
from trtops.tactics.exact import FisherTest, holm, wilson
from trtops.tactics.features import Features, Groups, Ints, features_of, groups_of
from trtops.tactics.findings import (
    ACQUITTED,
    By,
    Conclusion,
    Explanation,
    LayerChoice,
    SetDifference,
    Suspect,
    TacticDiff,
)
from trtops.tactics.rates import Likelihood, Trend
from trtops.tactics.several import Bools
from trtops.tactics.spelling import SPELLINGS, spell
from trtops.tactics.table import ABSENT, CampaignTable
from trtops.verdict import VERDICTS

_WORTH_NAMING = 0.01  # guilt below which the joint settings that decide a suspect are not searched for
_CONFOUNDED = 3.0  # the gain, as a logarithm, from which on time or a machine is said to matter: odds of twenty to one
_WRONG_VERDICTS = 0.05  # share of the bad verdicts that may be wrong where a culprit is ruled out


def diff(
    table: CampaignTable, *, confidence: float = 0.95, by: By = "tactic", blocks: Mapping[str, str] | None = None
) -> TacticDiff:
    """Find what the bad builds have in common and the good ones lack.

    Each ``by`` is another test: whoever makes several should make each at a higher confidence.

    Args:
        table: The campaign.
        confidence: What a conviction needs, between 0.5 and 1.
        by: What to compare: the layers' tactics, tensor formats, precisions, or tactics with their formats.
        blocks: By names of builds, where and with what each was made: where the rate of bad builds differs between blocks, or
            changes in time, choices need evidence beyond that.

    Raises:
        ConfigError: If the confidence is not between 0.5 and 1, or ``by`` is none of these.
    """
    if not 0.5 <= confidence < 1:
        raise errors.ConfigError(f"confidence is {confidence}; expected at least 0.5 and less than 1, such as 0.95.")
    if by not in SPELLINGS:
        raise errors.ConfigError(f"by is {by!r}; expected one of {', '.join(SPELLINGS)}. {errors.near(by, SPELLINGS)}")
    case = _Case(table, by)
    found = (
        evidence.weigh(case.groups, case.bad) if case.groups.members and case.bad.any() and not case.bad.all() else None
    )
    confounder = _find_confounder(case, blocks or {}) if found else None
    if found and confounder:
        found = replace(found, log_e_value=found.log_e_value - confounder.gain)
    ranking = _rank_groups(case, found)
    conclusion = _reach_conclusion(case, found, confidence)
    result = TacticDiff(
        by=by,
        ordered=table.ordered,
        confidence=confidence,
        conclusion=conclusion,
        more_builds=_more_builds(case, found, conclusion, confidence),
        good=int((~case.bad).sum()),
        bad=int(case.bad.sum()),
        errors=table.named("error"),
        layers=len(table.layers),
        varying_layers=tuple(table.layers[i] for i in sorted({c for c in case.features.column.tolist() if c >= 0})),
        suspects=_describe_suspects(case, found, ranking, confidence),
        explanation=_describe_explanation(case, found, ranking) if found else None,
        p_value=found.p_value if found else 1.0,
        e_value_log10=found.log_e_value / math.log(10) if found else 0.0,
        p_innocent=found.innocent if found else 0.5,
        thorough=found is not None and _would_have_shown(case, 2, confidence),
        confounder=_confounder_text(confounder) if confounder else "",
        contradicting=_count_contradicting(case),
        set_difference=set_difference(table),
    )
    return replace(result, summary=report.summary(result))


def decided(table: CampaignTable, *, confidence: float = 0.95, by: By = "tactic") -> bool:
    """Whether a campaign can stop: a culprit is convicted, or one would have been by now. May be asked at any time.

    Never true of builds without an order of arrival.
    """
    return diff(table, confidence=confidence, by=by).decided


def builds_with(table: CampaignTable, suspect: Suspect, *, by: By = "tactic") -> tuple[str, ...]:
    """Names of the builds that have all of a suspect's choices and settings, whatever their verdict, in the table's order.

    A proof starts from them: it swaps the suspect out of a bad build that has it, and into a good one that does not.

    Args:
        table: The campaign that the suspect was found in.
        suspect: One of its diff's suspects.
        by: As in the diff.
    """
    texts, translate = spell(table.choices, by)
    having = (table.codes != ABSENT).any(axis=1)  # a build without a record has nothing
    for choice in suspect.choices:
        code = ABSENT if choice.choice is None else texts.index(choice.choice)
        having &= translate[table.codes[:, table.layers.index(choice.layer)]] == code
    for name, value in suspect.settings:
        having &= table.setting_codes[:, table.settings.index(name)] == table.values.index(value)
    return tuple(name for name, has in zip(table.names, having) if has)


def set_difference(table: CampaignTable) -> tuple[SetDifference, ...]:
    """The difference that Polygraphy prints: per layer, what was seen in a bad build and in no good one."""
    seen = {}
    for verdict in ("good", "bad"):
        codes = table.codes[table.verdicts == VERDICTS.index(verdict)]
        mask = np.zeros((codes.shape[1], len(table.choices) + 1), np.bool_)
        mask[np.arange(codes.shape[1]), codes] = (
            True  # the code -1 of an absent layer marks the last column, dropped below
        )
        seen[verdict] = mask[:, :-1]
    only_bad = seen["bad"] & ~seen["good"]
    choices = table.choices
    return tuple(
        SetDifference(layer=layer, choices=tuple(choices[code] for code in np.flatnonzero(row)))
        for layer, row in zip(table.layers, only_bad)
        if row.any()
    )


class _Case:
    """The evaluated builds of a table, as features and verdicts.

    Settings are features too, with the columns -1, -2, and so on.
    """

    def __init__(self, table: CampaignTable, by: By) -> None:
        self.table = table
        evaluated = table.verdicts != VERDICTS.index("error")
        self.names = [name for name, is_evaluated in zip(table.names, evaluated) if is_evaluated]
        self.bad: Bools = table.verdicts[evaluated] == VERDICTS.index("bad")
        spelled, translate = spell(table.choices, by)
        self.texts = spelled
        self.codes = translate[table.codes[evaluated]]
        self.setting_codes = table.setting_codes[evaluated]
        layers, settings = features_of(self.codes), features_of(self.setting_codes)
        self.features = Features(
            present=np.hstack((layers.present, settings.present)),
            column=np.concatenate((layers.column, -1 - settings.column)),
            code=np.concatenate((layers.code, settings.code)),
            birth=np.concatenate((layers.birth, settings.birth)),
        )
        self.groups: Groups = groups_of(self.features, ordered=table.ordered)

    def choices(self, group: int) -> tuple[LayerChoice, ...]:
        """A group's layers and choices. Absent layers only if there is nothing else: they follow from the other choices."""
        members = [f for f in self.groups.members[group] if self.features.column[f] >= 0]
        present = [f for f in members if self.features.code[f] != ABSENT]
        is_setting = len(members) < len(self.groups.members[group])
        return tuple(self._choice(f) for f in (present or ([] if is_setting else members)))

    def settings(self, group: int) -> tuple[tuple[str, str], ...]:
        """Settings that are in the group, and so come in the same builds."""
        members = self.groups.members[group]
        return tuple(
            self._setting(f) for f in members if self.features.column[f] < 0 and self.features.code[f] != ABSENT
        )

    def joint_settings(self, group: int) -> tuple[tuple[str, str], ...]:
        """A minimal set of settings that come together in exactly the builds that have the group; empty if there is none."""
        present = self.groups.present[:, group]
        settings = np.flatnonzero((self.features.column < 0) & (self.features.code != ABSENT)).tolist()
        # Only settings that every build of the group has can be in the set. If all of these together do not single the group
        # out, no subset does; if they do, each one that the others do without is dropped.
        needed = [f for f in settings if not (present & ~self.features.present[:, f]).any()]
        if not np.array_equal(self.features.present[:, needed].all(axis=1), present):
            return ()
        for feature in list(needed):
            fewer = [f for f in needed if f != feature]
            if fewer and np.array_equal(self.features.present[:, fewer].all(axis=1), present):
                needed = fewer
        return tuple(self._setting(f) for f in needed)

    def _choice(self, feature: int) -> LayerChoice:
        code = int(self.features.code[feature])
        layer = self.table.layers[self.features.column[feature]]
        return LayerChoice(layer=layer, choice=None if code == ABSENT else self.texts[code])

    def _setting(self, feature: int) -> tuple[str, str]:
        name = self.table.settings[-1 - self.features.column[feature]]
        return name, self.table.values[self.features.code[feature]]


def _find_confounder(case: _Case, blocks: Mapping[str, str]) -> Confounder | None:
    """What else than choices bad builds go with, if it shows."""
    found = [drift(case.bad)] if case.table.ordered else []
    labels = [blocks.get(name, "") for name in case.names]
    if len(set(labels)) > 1:
        found.append(blocked(case.bad, labels))
    shown = [confounder for confounder in found if confounder.gain > _CONFOUNDED]
    return max(shown, key=lambda confounder: confounder.gain, default=None)


def _confounder_text(confounder: Confounder) -> str:
    parts = [f"{bad} of {builds} bad in {name}" for name, builds, bad in confounder.parts]
    return "The share of bad builds depends on more than choices: " + ", ".join(parts) + "."


def _rank_groups(case: _Case, found: Evidence | None) -> Ints:
    """Groups by guilt; of equally guilty ones, those in more bad builds first."""
    groups = len(case.groups.members)
    guilt = found.guilt if found else np.zeros(groups)
    hits = case.groups.present[case.bad].sum(axis=0)
    return np.lexsort((np.arange(groups), -hits, -guilt))


def _describe_suspects(case: _Case, found: Evidence | None, ranking: Ints, confidence: float) -> tuple[Suspect, ...]:
    builds, bad = len(case.bad), int(case.bad.sum())
    size, hits = case.groups.present.sum(axis=0), case.groups.present[case.bad].sum(axis=0)
    test = FisherTest(builds, bad)
    p_values = np.array([test(int(s), int(h)) for s, h in zip(size, hits)], np.float64)
    corrected = holm(p_values)
    guilt = found.guilt if found else np.zeros(len(ranking))
    suspects = []
    for g in ranking.tolist():
        n, m = int(size[g]), int(hits[g])
        low, high = wilson(m, n, confidence)
        settings = case.settings(g) or (case.joint_settings(g) if guilt[g] > _WORTH_NAMING else ())
        suspects.append(
            Suspect(
                choices=case.choices(g),
                settings=settings,
                good=n - m,
                bad=m,
                good_without=builds - bad - n + m,
                bad_without=bad - m,
                p_bad=m / n,
                p_bad_low=low,
                p_bad_high=high,
                p_value=float(p_values[g]),
                p_corrected=float(corrected[g]),
                guilt=float(guilt[g]),
            )
        )
    return tuple(suspects)


def _describe_explanation(case: _Case, found: Evidence, ranking: Ints) -> Explanation:
    place = {int(group): position for position, group in enumerate(ranking)}
    explained = int(case.bad[found.expected_bad].sum())
    return Explanation(
        clauses=tuple(sorted(tuple(sorted(place[g] for g in clause)) for clause in found.best)),
        probability=found.best_probability,
        bad_explained=explained,
        bad_unexplained=int(case.bad.sum()) - explained,
        good_against=int(found.expected_bad.sum()) - explained,
    )


def _reach_conclusion(case: _Case, found: Evidence | None, confidence: float) -> Conclusion:
    if not len(case.bad):
        return "no builds"
    if not case.bad.any():
        return "no bad builds"
    if case.bad.all():
        return "no good builds"
    if found is None:
        return "no single tactic explains this"
    if found.log_e_value >= -math.log(1 - confidence):
        return "convicted" if found.guilt.max() >= confidence else "narrowed down"
    if _is_acquitted(case, found, confidence):
        return "no single tactic explains this"
    return "not enough runs"


def _is_acquitted(case: _Case, found: Evidence, confidence: float) -> bool:
    """Whether a culprit would have been convicted by now: a single one, or where innocence is less certain, even a pair."""
    if found.innocent > ACQUITTED:
        return _would_have_shown(case, 1, confidence)
    return found.innocent > 0.5 and _would_have_shown(case, 2, confidence)


def _would_have_shown(case: _Case, culprits: Literal[1, 2], confidence: float) -> bool:
    """Whether one or two culprits of average prior, present in all bad builds but those misclassified, would be convicted."""
    prior = evidence.average_prior(len(case.groups.members), culprits)
    builds, bad = len(case.bad), int(case.bad.sum())
    likelihood = Likelihood(builds, bad)
    # As many builds have the culprit as are bad. A few of those are good, and as many bad builds do not have it.
    hits = bad - int(_WRONG_VERDICTS * bad)
    log_e_value = prior + float(likelihood(np.int64(bad), np.int64(hits))) - likelihood.supremum
    return log_e_value >= -math.log(1 - confidence)


def _more_builds(case: _Case, found: Evidence | None, conclusion: Conclusion, confidence: float) -> int | None:
    """Builds until the best explanation is expected to be convicted, or to be told apart from the next best."""
    if found is None or conclusion not in ("not enough runs", "narrowed down"):
        return None
    builds, bad, expected = len(case.bad), int(case.bad.sum()), found.expected_bad
    trend = Trend.of(builds, bad, int(expected.sum()), int(case.bad[expected].sum()))
    if conclusion == "not enough runs":
        enough = trend.builds_until(-math.log(1 - confidence), found.best_prior, builds)
        return None if enough is None else max(1, enough - builds)
    guilt = float(found.guilt.max())
    # How much the logarithm of the odds of the most suspicious group must still grow.
    missing = math.log(confidence / (1 - confidence)) - math.log(guilt / (1 - guilt))
    return trend.builds_to_tell_apart(expected, found.rival_expected_bad, missing)


def _count_contradicting(case: _Case) -> int:
    """Evaluated builds that made the same choices as one with the other verdict."""
    rows = np.ascontiguousarray(np.hstack((case.codes, case.setting_codes)))
    verdicts: dict[bytes, list[int]] = {}
    for row, bad in zip(rows, case.bad.tolist()):
        verdicts.setdefault(row.tobytes(), [0, 0])[bad] += 1
    return sum(good + bad for good, bad in verdicts.values() if good and bad)
