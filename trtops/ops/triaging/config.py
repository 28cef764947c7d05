"""What the triage is asked."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtops import errors
from trtops.ops.evaluation.check import CheckConfig
from trtops.record import Record
from trtops.spec import BuildConfig


def _quick_check() -> CheckConfig:
    return CheckConfig(plots="never", latency_runs=0)


@dataclass(frozen=True, kw_only=True)
class TriageConfig(Record):
    """Which engine is wrong, on what data, and how much finding out may cost.

    Attributes:
        build: How the engine is built.
        check: On what data it is evaluated, and by what tolerances.
        golden_model: A model that is right: an earlier export, or the one that this was made from. Tensors are matched by
            their names. With it a fault of the model itself is found, and not just that there is one.
        calibration_data: Data source for INT8 calibration; the check's own data unless given.
        calibration_cache: A calibration cache file that INT8 is built with.
        replay: A tactic record that the engine is built with.
        minutes: No step is begun after so many minutes; what is left can be resumed. None for no limit.
        rebuilds: How often a bad engine is built again, to see whether it is bad every time.
        campaign_builds: Builds that looking for a guilty tactic may take.
        reduce_checks: Sub-models that making the failing case small may take.
        keep_checks: Sets of nodes that looking for those to keep may take.
        output: Folder for the smallest failing case and its bundle; in the run alone unless given.
    """

    build: BuildConfig = field(default_factory=BuildConfig)
    check: CheckConfig = field(default_factory=_quick_check)
    golden_model: str | None = None
    calibration_data: str | None = None
    calibration_cache: str | None = None
    replay: str | None = None
    minutes: float | None = None
    rebuilds: int = 2
    campaign_builds: int = 40
    reduce_checks: int = 200
    keep_checks: int = 200
    output: str | None = None

    def __post_init__(self) -> None:
        for name in ("rebuilds", "campaign_builds", "reduce_checks", "keep_checks"):
            if getattr(self, name) < 1:
                raise errors.ConfigError(f"{name} is {getattr(self, name)}; expected 1 or more.")
        if self.minutes is not None and not self.minutes > 0:
            raise errors.ConfigError(f"minutes is {self.minutes}; expected more than 0.")
