"""Where an error comes from: the inference, the build, or the precision that all builds share.

Build several engines and run each several times. What varies between runs of one engine comes from the inference (atomics,
races), what varies between engines beyond that comes from the tactics, and what never varies comes from the precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from trtops import errors
from trtops.record import Record

Cause: TypeAlias = Literal["inference", "tactic", "precision", "nothing"]


@dataclass(frozen=True, kw_only=True)
class NoiseSplit(Record):
    """An error, split by a one-way random-effects analysis of variance.

    The mean square error is the sum of three parts: of the mean over all builds (every build has it), of the builds'
    spread around it, and of the runs' spread around their build. The two variances are the method-of-moments (ANOVA)
    estimates for unequal group sizes; a negative one counts as zero (Searle, Casella and McCulloch, "Variance
    Components", chapter 3).

    Attributes:
        builds: Number of builds.
        runs: Number of runs, over all builds.
        mean: Mean error, in the error's own unit; as the two standard deviations, without builds that were set apart.
        run_to_run: Standard deviation between runs of one engine, in the same unit.
        build_to_build: Standard deviation between engines, without what runs add.
        share_precision: Part of the mean square error that all builds have; the three shares add up to 1.
        share_build: Part that differs from build to build.
        share_run: Part that differs from run to run.
        f_value: Mean square between builds over mean square within; infinite if runs never differ and builds do.
        p_value: Probability of such a ratio if builds do not differ, by Fisher's F-test.
        cause: The largest part; ``tactic`` only if the F-test is significant.
        summary: The same in a sentence.
        share_choice: Part of the mean square error, over all builds, that only those add that were set apart for a choice that
            they made. The other three shares are of the rest and add up to 1 with it.
        largest: The largest error among the rest.
        guilty_builds: How many builds were set apart.
        guilty_least: The smallest error among these; None if there are none.
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
    guilty_builds: int = 0
    guilty_least: float | None = None

    def limit(self, deviations: float = 3.0) -> float:
        """The limit that the error of another run of another build is expected to stay below, in the error's own unit.

        A tolerance for this model: as tight as its noise allows, and below every build that was set apart for its choice.

        Args:
            deviations: How many standard deviations, of builds and runs together, above the mean.
        """
        limit = self.mean + deviations * math.hypot(self.run_to_run, self.build_to_build)
        if self.guilty_least is None or limit < self.guilty_least:
            return limit
        return math.sqrt(min(self.largest, self.guilty_least) * self.guilty_least)


def noise(run_to_run: Sequence[Sequence[float]] | npt.ArrayLike, *, confidence: float = 0.95) -> NoiseSplit:
    """Split errors into what runs, builds and the precision add.

    Args:
        run_to_run: Errors in any unit, such as an output's largest absolute error: one row per build, one number per
            run of its engine. Rows may differ in length. The precision's part has a meaning only if the errors are
            against a golden result.
        confidence: Of the F-test.

    Raises:
        ConfigError: If there are fewer than two builds, or no build was run twice, or an error is not finite.
    """
    rows = [np.asarray(row, np.float64).ravel() for row in run_to_run]  # type: ignore[union-attr]
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
    p_value = f_tail(f_value, len(rows) - 1, freedom)
    parts = {"precision": mean * mean, "tactic": build_variance, "inference": within}
    total = math.fsum(parts.values())
    shares = {name: part / total if total > 0 else 0.0 for name, part in parts.items()}
    cause = _largest_cause(shares, p_value < 1 - confidence)
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
        cause=cause,
        summary=_cause_sentence(cause, shares, p_value),
    )


def noise_apart(
    run_to_run: Sequence[Sequence[float]], guilty: Sequence[bool], *, confidence: float = 0.95
) -> NoiseSplit:
    """Split errors as :func:`noise` does, with builds set apart that differ because of a choice.

    Args:
        run_to_run: As in :func:`noise`.
        guilty: Which builds are set apart; none is if fewer than two would be left.
        confidence: Of the F-test.

    Raises:
        ConfigError: As :func:`noise`.
    """
    rest = [row for row, apart in zip(run_to_run, guilty) if not apart]
    theirs = [error for row, apart in zip(run_to_run, guilty) if apart for error in row]
    if not theirs or len(rest) < 2:
        return noise(run_to_run, confidence=confidence)
    split = noise(rest, confidence=confidence)
    every = np.concatenate([np.asarray(row, np.float64) for row in run_to_run])
    own = np.concatenate([np.asarray(row, np.float64) for row in rest])
    total = float((every**2).mean())
    share = max(0.0, 1 - float((own**2).mean()) / total) if total > 0 else 0.0
    apart = sum(guilty)
    sentence = (
        f"{apart} of {len(run_to_run)} builds are worse because of a choice, and are set apart: {share:.0%} of the mean square "
        "error is theirs alone. Of the rest: "
    )
    return replace(
        split,
        builds=len(run_to_run),
        runs=every.size,
        share_choice=share,
        share_precision=split.share_precision * (1 - share),
        share_build=split.share_build * (1 - share),
        share_run=split.share_run * (1 - share),
        cause="tactic" if share > 0.5 else split.cause,
        summary=sentence + split.summary,
        largest=float(own.max()),
        guilty_builds=apart,
        guilty_least=float(min(theirs)),
    )


def f_tail(value: float, between: float, within: float) -> float:
    """Probability that an F-distributed ratio with these degrees of freedom is at least ``value``.

    Raises:
        ConfigError: If a degree of freedom is less than one.
    """
    if between < 1 or within < 1:
        raise errors.ConfigError(f"F-test with {between} and {within} degrees of freedom; expected at least 1 of each.")
    from scipy import special  # takes a tenth of a second, and few commands test anything

    return float(special.fdtrc(between, within, value))


def student_quantile(confidence: float, freedom: float) -> float:
    """The number below which the absolute value of Student's t stays with a probability of ``confidence``."""
    from scipy import special  # as above

    return float(special.stdtrit(freedom, (1 + confidence) / 2))


def _largest_cause(shares: dict[str, float], builds_differ: bool) -> Cause:
    causes: tuple[Cause, ...] = ("precision", "tactic", "inference") if builds_differ else ("precision", "inference")
    largest = max(causes, key=lambda cause: shares[cause])
    return largest if shares[largest] > 0 else "nothing"


def _cause_sentence(cause: Cause, shares: dict[str, float], p_value: float) -> str:
    if cause == "nothing":
        return "There is no error to explain."
    split = (
        f"{shares['precision']:.0%} of the mean square error is in every build, {shares['tactic']:.0%} differs from "
        f"build to build, {shares['inference']:.0%} from run to run (F-test: builds differ, p = {p_value:.2g})"
    )
    verdict = {
        "precision": "Precision-caused: rebuilding will not help, another precision may",
        "tactic": "Tactic-caused: some builds are better than others, so pin a good one",
        "inference": "Inference-caused: the same engine differs from run to run, so no choice of build will help",
    }[cause]
    return f"{verdict}. {split}."
