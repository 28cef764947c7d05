"""Splits an error into the parts that inference, build and precision add.

Build several engines and run each several times. Variation between runs of one engine comes from the inference
(atomics, races), further variation between engines from the tactics, and what never varies from the precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from trtops import errors
from trtops.record import Record

Cause: TypeAlias = Literal["inference", "tactic", "precision", "nothing"]

_ADVICE = {
    "precision": "Precision-caused: rebuilding will not help, another precision may",
    "tactic": "Tactic-caused: some builds are better than others, so pin a good one",
    "inference": "Inference-caused: the same engine differs from run to run, so no choice of build will help",
}


@dataclass(frozen=True, kw_only=True)
class NoiseSplit(Record):
    """An error, split by a one-way random-effects analysis of variance.

    The mean square error is the sum of three parts: of the mean over all builds, of the builds' spread around it, and
    of the runs' spread around their build. The two variances are the ANOVA estimates for unequal group sizes; a
    negative one counts as zero (Searle, Casella and McCulloch, "Variance Components", chapter 3).

    Attributes:
        builds: Number of builds.
        runs: Number of runs, over all builds.
        mean: Mean error, in the error's own unit; like the two standard deviations, without builds that were set apart.
        run_to_run: Standard deviation between runs of one engine, in the same unit.
        build_to_build: Standard deviation between engines, without what runs add.
        share_precision: Part of the mean square error that all builds have; the shares add up to 1.
        share_build: Part that differs from build to build.
        share_run: Part that differs from run to run.
        share_choice: Part that only the builds add that were set apart for a choice they made.
        f_value: Mean square between builds over mean square within; infinite if runs never differ and builds do.
        p_value: Probability of such a ratio if builds do not differ, by Fisher's F-test.
        cause: The largest part; ``tactic`` only if the F-test is significant.
        summary: The same in a sentence.
        largest: The largest error among the rest.
        culprit_builds: Number of builds set apart.
        culprit_least: The smallest error among these; None without any.
    """

    builds: int
    runs: int
    mean: float
    run_to_run: float
    build_to_build: float
    share_precision: float
    share_build: float
    share_run: float
    f_value: float
    p_value: float
    cause: Cause
    summary: str
    share_choice: float = 0.0
    largest: float = math.inf
    culprit_builds: int = 0
    culprit_least: float | None = None

    def limit(self, deviations: float = 3.0) -> float:
        """The error that another run of another build is expected to stay below, in the error's own unit.

        As tight as the noise allows, and below every build that was set apart.

        Args:
            deviations: Number of standard deviations, of builds and runs together, above the mean.
        """
        limit = self.mean + deviations * math.hypot(self.run_to_run, self.build_to_build)
        if self.culprit_least is None or limit < self.culprit_least:
            return limit
        return math.sqrt(min(self.largest, self.culprit_least) * self.culprit_least)


def noise(
    errors_of_builds: Sequence[Sequence[float]],
    set_apart: Sequence[bool] = (),
    *,
    confidence: float = 0.95,
) -> NoiseSplit:
    """Split errors into the parts that runs, builds and the precision add.

    Args:
        errors_of_builds: Errors in any unit, such as an output's largest absolute error: one row per build, one number
            per run of its engine. The precision's part has a meaning only if the errors are relative to a golden
            result.
        set_apart: The builds that differ because of a known choice; ignored if fewer than two others remain.
        confidence: Of the F-test.

    Raises:
        ConfigError: If there are fewer than two builds, or no build was run twice, or an error is not finite.
    """
    rows = [np.asarray(row, np.float64).ravel() for row in errors_of_builds]
    apart = list(set_apart) or [False] * len(rows)
    rest = [row for row, is_apart in zip(rows, apart) if not is_apart]
    if not any(apart) or len(rest) < 2:
        return _split(rows, confidence)
    split = _split(rest, confidence)
    every, own = np.concatenate(rows), np.concatenate(rest)
    total = float((every**2).mean())
    share = max(0.0, 1 - float((own**2).mean()) / total) if total > 0 else 0.0
    sentence = (
        f"{sum(apart)} of {len(rows)} builds are worse because of a choice, and are set apart: {share:.0%} of the mean "
        "square error is theirs alone. Of the rest: "
    )
    return replace(
        split,
        builds=len(rows),
        runs=every.size,
        share_choice=share,
        share_precision=split.share_precision * (1 - share),
        share_build=split.share_build * (1 - share),
        share_run=split.share_run * (1 - share),
        cause="tactic" if share > 0.5 else split.cause,
        summary=sentence + split.summary,
        largest=float(own.max()),
        culprit_builds=sum(apart),
        culprit_least=float(min(row.min() for row, is_apart in zip(rows, apart) if is_apart)),
    )


def _split(rows: list[np.ndarray], confidence: float) -> NoiseSplit:
    from scipy import stats  # takes half a second to import

    sizes = np.array([row.size for row in rows])
    if len(rows) < 2 or (sizes < 1).any() or sizes.max() < 2:
        raise errors.ConfigError(
            f"Noise of {len(rows)} builds with {sizes.tolist()} runs: expected at least two builds, each run at least "
            "once and one of them twice. Add builds, or runs of their engines."
        )
    values = np.concatenate(rows)
    if not np.isfinite(values).all():
        raise errors.ConfigError(
            "Noise: an error is NaN or infinite. Such a build is bad, whatever its noise: leave it out."
        )
    means, mean = np.array([row.mean() for row in rows]), float(values.mean())
    between = float((sizes * (means - mean) ** 2).sum()) / (len(rows) - 1)
    freedom = values.size - len(rows)
    within = math.fsum(float(((row - m) ** 2).sum()) for row, m in zip(rows, means)) / freedom
    typical_size = (values.size - float((sizes**2).sum()) / values.size) / (len(rows) - 1)
    build_variance = max(0.0, (between - within) / typical_size)
    f_value = between / within if within > 0 else (math.inf if between > 0 else 1.0)
    p_value = float(stats.f.sf(f_value, len(rows) - 1, freedom))
    parts: dict[Cause, float] = {"precision": mean * mean, "tactic": build_variance, "inference": within}
    total = math.fsum(parts.values())
    shares = {name: part / total if total > 0 else 0.0 for name, part in parts.items()}
    cause = max(shares, key=lambda name: shares[name] if name != "tactic" or p_value < 1 - confidence else -1.0)
    summary = "There is no error to explain."
    if shares[cause] > 0:
        summary = (
            f"{_ADVICE[cause]}. {shares['precision']:.0%} of the mean square error is in every build, "
            f"{shares['tactic']:.0%} differs from build to build, {shares['inference']:.0%} from run to run "
            f"(F-test: builds differ, p = {p_value:.2g})."
        )
    return NoiseSplit(
        builds=len(rows),
        runs=values.size,
        mean=mean,
        run_to_run=math.sqrt(within),
        build_to_build=math.sqrt(build_variance),
        share_precision=shares["precision"],
        share_build=shares["tactic"],
        share_run=shares["inference"],
        f_value=f_value,
        p_value=p_value,
        cause=cause if shares[cause] > 0 else "nothing",
        summary=summary,
    )
