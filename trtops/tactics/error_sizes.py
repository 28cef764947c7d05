"""What the size of errors shows, where verdicts show little: groups of errors, a tolerance between them, and effects of choices.

Errors span decades, so everything is done on their logarithms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trtops.record import Record
from trtops.tactics.diff import builds_with, diff
from trtops.tactics.findings import TacticDiff
from trtops.tactics.model import Floats
from trtops.tactics.table import CampaignTable

MIN_GAP = math.log(3)
"""The least gap between two groups; it must also be :data:`MIN_SPREADS` times the spread within them."""
MIN_SPREADS = 4.0
MIN_BUILDS = 6
"""Builds with a known error from which on anything is reported."""
_EXACT = 1e-6  # least spread of errors that are equal to the last bit
_SUSPECTS = 5  # whose effects are reported


@dataclass(frozen=True, kw_only=True)
class Effect(Record):
    """How much larger the error is with a choice.

    Attributes:
        ratio: Geometric mean of the largest absolute error with it, divided by that without.
        low: Lower end of the 95 % interval, by Welch's t on the logarithms.
        high: Its upper end.
    """

    ratio: float
    low: float
    high: float

    def describe(self) -> str:
        """The effect in words."""
        return f"makes max_abs {self.ratio:.3g} times larger (95 %: {self.low:.3g} to {self.high:.3g})"


def effect_of(larger: Sequence[float], smaller: Sequence[float]) -> Effect | None:
    """The ratio of two groups of errors, given as natural logarithms; None if a group has fewer than two."""
    from scipy import stats  # takes half a second to import

    if len(larger) < 2 or len(smaller) < 2:
        return None
    means = [float(np.mean(group)) for group in (larger, smaller)]
    spreads = [max(float(np.std(group, ddof=1)), _EXACT) for group in (larger, smaller)]
    parts = [spread**2 / len(group) for spread, group in zip(spreads, (larger, smaller))]
    freedom = sum(parts) ** 2 / sum(part**2 / (len(g) - 1) for part, g in zip(parts, (larger, smaller)))
    middle, half = means[0] - means[1], float(stats.t.ppf(0.975, freedom)) * math.sqrt(sum(parts))
    # With two builds the interval's end may exceed the largest float.
    low, high = (math.exp(min(end, 700.0)) for end in (middle - half, middle + half))
    return Effect(ratio=math.exp(middle), low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class ErrorGroup(Record):
    """Errors of nearly one size.

    Attributes:
        low: The smallest.
        high: The largest.
        builds: Number of builds.
    """

    low: float
    high: float
    builds: int

    def describe(self) -> str:
        """The group in words."""
        size = f"{self.low:.3g}" if self.low == self.high else f"{self.low:.3g} to {self.high:.3g}"
        return f"{self.builds} at {size}"


def error_groups(errors: Sequence[float]) -> tuple[ErrorGroup, ...]:
    """The groups that errors fall into, in ascending order.

    Args:
        errors: Not negative; zeros count as a tenth of the smallest other one. Infinite ones are a group of their own, NaN is ignored.
    """
    known = sorted(error for error in errors if not math.isnan(error))
    finite = [error for error in known if math.isfinite(error)]
    parts = list(_split_at_gaps(finite)) if finite else []
    if len(finite) < len(known):
        parts.append([math.inf] * (len(known) - len(finite)))
    return tuple(ErrorGroup(low=part[0], high=part[-1], builds=len(part)) for part in parts)


def _split_at_gaps(errors: list[float]) -> list[list[float]]:
    if len(errors) < 3:
        return [errors]
    logs = log_errors(errors)
    gaps = np.diff(logs)
    cut = int(gaps.argmax()) + 1
    halves = logs[:cut], logs[cut:]
    spread = math.sqrt(sum(float(((half - half.mean()) ** 2).sum()) for half in halves) / (len(errors) - 2))
    if gaps[cut - 1] < max(MIN_GAP, MIN_SPREADS * spread):
        return [errors]
    return [*_split_at_gaps(errors[:cut]), *_split_at_gaps(errors[cut:])]


def log_errors(errors: Sequence[float]) -> Floats:
    """Natural logarithms; zeros count as a tenth of the smallest other error, infinite ones as ten times the largest."""
    values = np.asarray(errors, np.float64)
    inside = values[(values > 0) & np.isfinite(values)]
    least, most = (float(inside.min()), float(inside.max())) if len(inside) else (1.0, 1.0)
    logs: Floats = np.log(np.clip(values, least / 10, most * 10))
    return logs


def tolerance_between(groups: Sequence[ErrorGroup]) -> float | None:
    """The middle, on a logarithmic scale, of the widest gap between groups; None if there is one group."""
    gaps = []
    for below, above in itertools.pairwise(groups):
        low = below.high or above.low / 10
        gaps.append((low, above.low if math.isfinite(above.low) else low * 1e6))
    if not gaps:
        return None
    low, high = max(gaps, key=lambda gap: gap[1] / gap[0])
    return math.sqrt(low * high)


@dataclass(frozen=True, kw_only=True)
class SuspectEffect(Record):
    """How much larger a suspect makes the error.

    Attributes:
        suspect: The suspect in words.
        probability: Its probability of being among the culprits.
        effect: The ratio of errors with it and without it.
    """

    suspect: str
    probability: float
    effect: Effect


@dataclass(frozen=True, kw_only=True)
class SizeFindings(Record):
    """What the errors of builds show.

    Attributes:
        groups: The groups that they fall into.
        tolerance: A tolerance between the two groups that lie furthest apart; None if there is one group.
        inside: The group that the tolerance in use lies inside of, so that rounding decides its builds' verdicts; None otherwise.
        found: The diff with builds above ``tolerance`` as bad; None if there is none, or if it parts builds as verdicts do.
        effects: Effects of the first suspects of that diff, or of the usual one.
    """

    groups: tuple[ErrorGroup, ...]
    tolerance: float | None = None
    inside: ErrorGroup | None = None
    found: TacticDiff | None = None
    effects: tuple[SuspectEffect, ...] = ()


def compare_sizes(
    table: CampaignTable, errors: Mapping[str, float], found: TacticDiff, *, tolerance: float | None = None
) -> SizeFindings | None:
    """Compare builds by the size of their errors; None where too few errors are known.

    Builds are parted by the groups that their errors fall into, instead of by the tolerance, and diffed again. The groups come from the
    errors alone, so that the tests of the diff hold for one look.

    Args:
        table: The builds.
        errors: The largest error of builds, by name, in any unit; not negative.
        found: The diff of the builds by their verdicts.
        tolerance: The one in use, in the same unit.
    """
    rows = [row for row, name in enumerate(table.names) if name in errors and not math.isnan(errors[name])]
    if len(rows) < MIN_BUILDS:
        return None
    sizes = [errors[table.names[row]] for row in rows]
    groups = error_groups(sizes)
    limit = tolerance_between(groups)
    is_large = np.array(sizes) > (math.inf if limit is None else limit)
    judged = CampaignTable.from_columns(
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
    again = None
    if limit is not None and not np.array_equal(judged.verdicts, table.verdicts[rows]):
        again = diff(judged, confidence=found.confidence, by=found.by)
    logs, effects = log_errors(sizes), []
    for suspect in (again or found).suspects[:_SUSPECTS]:
        having = set(builds_with(judged, suspect, by=found.by))
        has = np.array([name in having for name in judged.names])
        effect = effect_of(logs[has].tolist(), logs[~has].tolist())
        if effect is not None:
            effects.append(SuspectEffect(suspect=suspect.describe(), probability=suspect.probability, effect=effect))
    inside = next((g for g in groups if tolerance is not None and g.low < tolerance < g.high), None)
    return SizeFindings(groups=groups, tolerance=limit, inside=inside, found=again, effects=tuple(effects))


def size_lines(found: SizeFindings) -> list[str]:
    """The findings as lines of Markdown, without a heading."""
    lines = [f"Errors fall into {len(found.groups)} groups: {'; '.join(g.describe() for g in found.groups)}."]
    if len(found.groups) == 1:
        lines = [f"Errors form one group: {found.groups[0].describe()}."]
    if found.tolerance is not None:
        lines.append(f"A tolerance of {found.tolerance:.2g} would part them.")
    if found.inside is not None:
        lines.append(
            f"The tolerance in use lies inside one group ({found.inside.describe()}), so rounding decides verdicts."
        )
    if found.found is not None:
        lines += ["", f"With the larger ones as bad: {found.found.summary}"]
    lines += [""] * bool(found.effects)
    lines += [f"- {e.suspect}: {e.effect.describe()}, probability {e.probability:.1%}" for e in found.effects]
    return lines
