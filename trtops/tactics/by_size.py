"""What the size of builds' errors says about their choices, where verdicts say little: all good, all bad, or parted by rounding.

Builds are parted by the groups that their errors fall into, instead of by the tolerance, and diffed again. The groups come from
the errors alone, so that the tests of the diff hold for one look.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trtops.record import Record
from trtops.tactics.diff import builds_with, diff
from trtops.tactics.features import features_of, groups_of
from trtops.tactics.findings import By, TacticDiff
from trtops.tactics.noise import f_tail
from trtops.tactics.sizes import Effect, ErrorGroup, between, error_groups, inside, log_errors, welch
from trtops.tactics.spelling import spell
from trtops.tactics.table import ABSENT, CampaignTable

_SUSPECTS = 5  # of which effects are told
_FEWEST = 6  # builds with a known error from which on anything is said
_LEVEL = 0.05
_LEAST_SHARE = 0.03  # of the variance that a contributor explains

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SuspectEffect(Record):
    """How much larger a suspect makes the error.

    Attributes:
        suspect: The suspect in words.
        guilt: Its probability of guilt.
        effect: The ratio of errors with it and without it.
    """

    suspect: str
    guilt: float
    effect: Effect


@dataclass(frozen=True, kw_only=True)
class DecidingLayer(Record):
    """A layer whose choice alone parts small errors from large ones.

    Attributes:
        layer: Its name.
        bad: Its tactics with which errors are large.
        good: Those with which they are small.
        p_value: Probability that chance parts builds as neatly by any layer: exact, corrected for all that vary.
    """

    layer: str
    bad: tuple[str, ...]
    good: tuple[str, ...]
    p_value: float


@dataclass(frozen=True, kw_only=True)
class Contributor(Record):
    """A choice that adds to the error.

    Attributes:
        layer: The layer, or the setting.
        choice: What it got.
        adds: How much larger it makes the error, in the error's own unit.
        share: Part of the errors' variance that it explains beyond those before it.
    """

    layer: str
    choice: str
    adds: float
    share: float


@dataclass(frozen=True, kw_only=True)
class SizeFindings(Record):
    """What errors say.

    Attributes:
        groups: The groups that they fall into.
        tolerance: A tolerance between the two groups that lie furthest apart; None if there is one group.
        inside: The group that the tolerance in use lies inside of; None if in none, or if it is not known.
        found: The diff with builds above ``tolerance`` as bad; None if there is none, or it parts builds as verdicts do.
        effects: Of the first suspects, by whichever diff says more.
        layers: Layers whose choice alone parts the groups, the most certain first.
        contributors: Choices whose contributions add up, the largest first.
    """

    groups: tuple[ErrorGroup, ...]
    tolerance: float | None = None
    inside: ErrorGroup | None = None
    found: TacticDiff | None = None
    effects: tuple[SuspectEffect, ...] = ()
    layers: tuple[DecidingLayer, ...] = ()
    contributors: tuple[Contributor, ...] = ()


def by_size(
    table: CampaignTable, errors: Mapping[str, float], found: TacticDiff, *, tolerance: float | None = None
) -> SizeFindings | None:
    """What errors say about choices; None where too few are known.

    Args:
        table: The builds.
        errors: The largest error of builds, by name, in any unit; not negative.
        found: The diff of the builds by their verdicts.
        tolerance: The one in use, in the same unit.
    """
    rows = [row for row, name in enumerate(table.names) if name in errors and not math.isnan(errors[name])]
    if len(rows) < _FEWEST:
        return None
    sizes = np.array([errors[table.names[row]] for row in rows])
    groups = error_groups(sizes.tolist())
    limit = between(groups)
    is_large = sizes > (math.inf if limit is None else limit)
    evaluated = _reevaluated(table, rows, is_large)
    again = None
    if limit is not None and not np.array_equal(evaluated.verdicts, table.verdicts[rows]):
        again = diff(evaluated, confidence=found.confidence, by=found.by)
    by = found.by
    return SizeFindings(
        groups=groups,
        tolerance=limit,
        inside=inside(groups, tolerance) if tolerance is not None else None,
        found=again,
        effects=tuple(_effects_of_suspects(evaluated, again or found, sizes, by)),
        layers=tuple(_deciding_layers(evaluated, is_large, by)) if is_large.any() else (),
        contributors=tuple(_contributors_of_sum(evaluated, sizes, by)),
    )


def _reevaluated(table: CampaignTable, rows: list[int], is_large: npt.NDArray[np.bool_]) -> CampaignTable:
    return CampaignTable.from_columns(
        names=[table.names[row] for row in rows],
        verdicts=["bad" if large else "good" for large in is_large],
        layers=table.layers,
        choices=table.choices,
        codes=table.codes[rows],
        settings=table.settings,
        values=table.values,
        setting_codes=table.setting_codes[rows],
        ordered=False,
    )


def _effects_of_suspects(table: CampaignTable, found: TacticDiff, sizes: Floats, by: By) -> list[SuspectEffect]:
    logs, effects = log_errors(sizes.tolist()), []
    for suspect in found.suspects[:_SUSPECTS]:
        having = set(builds_with(table, suspect, by=by))
        has = np.array([name in having for name in table.names])
        effect = welch(logs[has].tolist(), logs[~has].tolist())
        if effect is not None:
            effects.append(SuspectEffect(suspect=suspect.describe(), guilt=suspect.guilt, effect=effect))
    return effects


def _deciding_layers(table: CampaignTable, is_large: npt.NDArray[np.bool_], by: By) -> list[DecidingLayer]:
    """Layers each of whose tactics has errors of one group only.

    Had chance handed the large errors out, every choice of so many builds would be as likely: the p-value is the share of
    choices that take whole tactics.
    """
    texts, translate = spell(table.choices, by)
    codes = translate[table.codes]
    ways = math.comb(len(is_large), int(is_large.sum()))
    varying = np.flatnonzero((codes != codes[:1]).any(axis=0))
    found = []
    for layer in varying.tolist():
        chosen = codes[:, layer]
        bad, good = set(chosen[is_large].tolist()), set(chosen[~is_large].tolist())
        if bad & good:
            continue
        counts = np.unique(chosen, return_counts=True)[1].tolist()
        p_value = min(1.0, len(varying) * _ways_to_sum(counts, int(is_large.sum())) / ways)
        if p_value < _LEVEL:
            named = ([texts[c] if c != ABSENT else "layer absent" for c in sorted(of)] for of in (bad, good))
            b, g = (tuple(names) for names in named)
            found.append(DecidingLayer(layer=table.layers[layer], bad=b, good=g, p_value=p_value))
    return sorted(found, key=lambda decided: decided.p_value)


def _ways_to_sum(counts: list[int], total: int) -> int:
    """How many subsets of some numbers add up to a total."""
    ways = [1] + [0] * total
    for count in counts:
        for reached in range(total, count - 1, -1):
            ways[reached] += ways[reached - count]
    return ways[total]


def _contributors_of_sum(table: CampaignTable, sizes: Floats, by: By) -> list[Contributor]:
    """Choices chosen one after the other, as long as each explains more than chance would: forward selection by the F-test.

    The level is divided by the number of choices, for having taken the best of them.
    """
    if not np.isfinite(sizes).all() or sizes.std() == 0:
        return []
    features = features_of(spell(table.choices, by)[1][table.codes])
    groups = groups_of(features, ordered=False) if features.present.size else None
    if groups is None or len(groups.members) < 1:
        return []
    present = groups.present.astype(np.float64)
    total = float(((sizes - sizes.mean()) ** 2).sum())
    design, left, chosen = np.ones((len(sizes), 1)), sizes - sizes.mean(), []
    while len(sizes) - design.shape[1] > 2:
        basis = np.linalg.qr(design)[0]
        columns = present - basis @ (basis.T @ present)
        norms = np.where((columns**2).sum(axis=0) > 1e-9, (columns**2).sum(axis=0), np.inf)
        gains = (columns.T @ left) ** 2 / norms
        best = int(gains.argmax())
        rest = max(float((left**2).sum()) - float(gains[best]), 1e-12 * total)
        freedom = len(sizes) - design.shape[1] - 1
        p_value = f_tail(float(gains[best]) / (rest / freedom), 1, freedom) * len(groups.members)
        if p_value > _LEVEL or gains[best] < _LEAST_SHARE * total:
            break
        chosen.append((best, float(gains[best]) / total))
        design = np.column_stack((design, present[:, best]))
        left = sizes - design @ np.linalg.lstsq(design, sizes, rcond=None)[0]
    if not chosen:
        return []
    adds = np.linalg.lstsq(design, sizes, rcond=None)[0][1:]
    texts = spell(table.choices, by)[0]
    found = []
    for (group, share), add in zip(chosen, adds.tolist()):
        feature = groups.members[group][0]
        code = int(features.code[feature])
        choice = "layer absent" if code == ABSENT else texts[code]
        layer = table.layers[int(features.column[feature])]
        found.append(Contributor(layer=layer, choice=choice, adds=add, share=share))
    return found


def size_lines(found: SizeFindings) -> list[str]:
    """The findings as lines of Markdown, without a heading."""
    lines = [f"Errors fall into {len(found.groups)} groups: {'; '.join(g.describe() for g in found.groups)}."]
    if len(found.groups) == 1:
        lines = [f"Errors form one group: {found.groups[0].describe()}."]
    if found.tolerance is not None:
        lines.append(f"A tolerance of {found.tolerance:.2g} would part them.")
    if found.inside is not None:
        lines.append(
            f"The tolerance in use lies inside of one group ({found.inside.describe()}), so that rounding decides verdicts."
        )
    if found.found is not None:
        lines += ["", f"With the larger ones as bad: {found.found.summary}"]
    lines += [""] * bool(found.effects)
    lines += [f"- {e.suspect}: {e.effect.describe()}, guilt {e.guilt:.1%}" for e in found.effects]
    for layer in found.layers[:_SUSPECTS]:
        lines.append(
            f"- `{layer.layer}` decides alone (p = {layer.p_value:.2g}): large errors with {', '.join(layer.bad)}; small ones with "
            f"{', '.join(layer.good)}"
        )
    if len(found.contributors) > 1:
        lines += ["", "What adds to the error:"]
        lines += [f"- `{c.layer}`: {c.choice} adds {c.adds:.3g} ({c.share:.0%})" for c in found.contributors]
    return lines
