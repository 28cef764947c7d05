"""Noise: whether an error comes from the inference, from the build, or from the precision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.ops.campaign.bisection_planner import Planner
from trtops.ops.campaign.config import Campaign
from trtops.ops.campaign.iteration import errors_in_child, golden_file
from trtops.ops.campaign.open_campaign import open_campaign
from trtops.ops.campaign.workers import close_workers, warm_backend
from trtops.ops.result import OnProgress, OpResult, finish_with, op_run
from trtops.record import Record
from trtops.tactics.diff import builds_with, diff
from trtops.tactics.noise import NoiseSplit
from trtops.tactics.noise import noise as split_noise
from trtops.tracking import builds, campaigns, schema
from trtops.tracking.base import Tracker, Verdict

Statistic: TypeAlias = Literal["max_abs", "mean_abs", "l2"]


@dataclass(frozen=True, kw_only=True)
class NoiseConfig(Record):
    """How much to measure.

    Attributes:
        builds: Number of the campaign's engines, good and bad ones in their order.
        runs: Runs of each engine.
        statistic: Which error against the golden outputs, of the worst output: ``max_abs``, ``mean_abs`` or ``l2``.
        confidence: Of the test whether builds differ.
        devices: GPUs to run on, as ``CUDA_VISIBLE_DEVICES`` names them; the campaign's unless given.
        allow_scripts: Run scripts and commands that the campaign's run names, which anyone with write access to the
            store can change.
    """

    builds: int = 8
    runs: int = 8
    statistic: Statistic = "max_abs"
    confidence: float = 0.95
    devices: tuple[str, ...] = ()
    allow_scripts: bool = False

    def __post_init__(self) -> None:
        if self.statistic not in get_args(Statistic):
            raise errors.ConfigError(f"statistic is {self.statistic!r}; expected max_abs, mean_abs or l2.")
        if self.builds < 2 or self.runs < 2:
            raise errors.ConfigError(f"builds={self.builds} and runs={self.runs}; expected 2 or more of each.")


@dataclass(frozen=True, kw_only=True)
class NoiseResult(OpResult):
    """The measured noise.

    Attributes:
        noise: The error, split.
        engines: Runs of the engines.
        errors: Their errors, one row per engine.
        statistic: The kind of error.
    """

    title: str = "noise"
    noise: NoiseSplit
    engines: tuple[str, ...]
    errors: tuple[tuple[float, ...], ...]
    statistic: Statistic = "max_abs"

    @property
    def verdict(self) -> Verdict:
        """Always ``good``: noise is only measured."""
        return "good"

    @property
    def headline(self) -> str:
        """The main cause of the error."""
        return self.noise.cause

    def body(self) -> Iterable[str]:
        """The split in sentences, a row for each engine, and the limit that the error stays below."""
        yield from (self.noise.summary, "", "| engine of run | mean error | least | most |", "|---|---|---|---|")
        for run_id, row in zip(self.engines, self.errors):
            yield f"| `{run_id}` | {sum(row) / len(row):.4g} | {min(row):.4g} | {max(row):.4g} |"
        yield ""
        yield (
            f"`{self.statistic}` of another run of another build is expected to stay below "
            f"{self.noise.limit():.4g}: at most three standard deviations above the mean of {self.noise.mean:.4g}, and "
            "below builds that a choice makes bad."
        )


def noise(
    campaign_run: str,
    config: NoiseConfig | None = None,
    *,
    tracker: Tracker,
    tags: Mapping[str, str] | None = None,
    progress: OnProgress | None = None,
) -> NoiseResult:
    """Run a campaign's engines repeatedly, and split their error into the parts of runs, builds and the precision.

    Args:
        campaign_run: The campaign's run.
        config: How much is measured.
        tracker: The tracking store.
        tags: Further tags of the run.
        progress: Called after each engine.

    Raises:
        ConfigError: If the campaign has fewer than two engines, or kept no golden outputs.
        TrtopsError: If an engine cannot be run.
    """
    config = NoiseConfig() if config is None else config
    campaign = open_campaign(tracker, campaign_run, allow_scripts=config.allow_scripts)
    if campaign.golden_sha256 is None:
        raise errors.ConfigError(
            f"Campaign {campaign.run_id} kept no golden outputs: its builds were evaluated otherwise."
        )
    table = campaigns.load_table(tracker, campaign.run_id)
    crashed = set(table.named("error"))
    engines = tuple(name for name in table.names if name not in crashed)[: config.builds]
    name = f"noise of {len(engines)} engines"
    try:
        with op_run(tracker, campaign.experiment, name, kind="noise", tags=tags, parent=campaign.run_id) as run:
            run.log_params(schema.flat_params(config))
            rows = []
            for run_id in engines:
                rows.append(_measure_engine(campaign, run_id, config, tracker))
                if progress is not None:
                    progress(len(rows), len(engines))
            found = split_noise(rows, _set_apart(engines, campaign, tracker), confidence=config.confidence)
            result = NoiseResult(noise=found, engines=engines, errors=tuple(rows), statistic=config.statistic).kept_in(
                run, campaign.experiment
            )
            run.log_json(result, schema.Artifact.NOISE)
            shares = ("share_choice", "share_precision", "share_build", "share_run", "run_to_run", "build_to_build")
            run.log_metrics({(schema.Metric.NOISE, share): getattr(found, share) for share in shares})
            run.log_metrics({(schema.Metric.NOISE, "limit"): found.limit()})
            finish_with(run, result, tracker, evaluated=False)
    finally:
        close_workers()
    return result


def _set_apart(engines: Sequence[str], campaign: Campaign, tracker: Tracker) -> list[bool]:
    """The engines with a culprit of the campaign's bisections or of its diff."""
    config, table = campaign.config, campaigns.load_table(tracker, campaign.run_id)
    planner = Planner.read(tracker, tracker.info(campaign.run_id), config, ())
    having = {name for name, has in zip(table.names, planner.explained(table)) if has}
    for suspect in diff(table, confidence=config.confidence, by=config.by).confirmed:
        having.update(builds_with(table, suspect, by=config.by))
    return [engine in having for engine in engines]


def _measure_engine(campaign: Campaign, run_id: str, config: NoiseConfig, tracker: Tracker) -> tuple[float, ...]:
    engine = builds.load_engine(tracker.load(run_id))
    golden = golden_file(tracker, campaign)
    place = campaign.config.place.on(config.devices)
    with warm_backend(place.backend, place.devices, place.timeout_seconds) as backend:
        found = backend.worker.run(
            errors_in_child,
            engine,
            Model.load(campaign.model),
            campaign.config.check,
            str(golden),
            config.runs,
            config.statistic,
            timeout=backend.timeout,
        )
    values = tuple(float(value) for value in found)
    if not np.isfinite(values).all():
        raise errors.ConfigError(
            f"The engine of run {run_id} gives NaN or infinite errors; leave it out of the campaign."
        )
    return values
