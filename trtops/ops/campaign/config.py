"""The config of a campaign: the variation between builds, and the devices to build on."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeAlias

from trtops import errors
from trtops.calibration.data import data_source
from trtops.ops.devices import BuildPlace
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.search.command import CommandCheck
from trtops.record import Config, Record, refuse_unused, setting
from trtops.spec import CAMPAIGN_SEEDS, BuildConfig
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticRecord

Until: TypeAlias = int | Literal["good", "bad", "decided"]
"""When a campaign ends: after a number of builds, with the first good or bad one, or when the culprits are known."""


# What only decides when a campaign ends, and where and how many at a time its builds are made.
_FREE_FIELDS = frozenset((
    "until", "max_iterations", "max_minutes", "bisect", "complete", "clean_builds", "confidence", "parallel", "devices",
    "timeout_seconds",
))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DebugBuildConfig(Config):
    """A campaign: the model to build repeatedly, the check of each build, and the limits.

    Attributes:
        build: How engines are built.
        check: How they are evaluated, unless a command is given. Golden outputs are computed once and kept in the
            campaign.
        command: An external command that evaluates an engine: ``{engine}`` in it is the engine's file, ``{golden}`` and
            ``{inputs}`` JSON files as Polygraphy takes them. With ``artifact`` the engine is written there instead.
        calibration_data: Data source for INT8 calibration (default: the check's own data).
        calibration_cache: A calibration cache file to build INT8 with, instead of calibrating.
        random_tactics: Choose tactics at random and not by their time. It shows what each choice does to the outputs,
            including choices that timing seldom makes. The share of bad builds is then not the share in production.
            With ``bisect``, builds after the first do so in any case until there are a good and a bad one to mix.
        until: When to stop; an unproven build counts as good.
        max_iterations: Maximum number of builds; with ``bisect``, of builds and mixtures.
        max_minutes: No build starts after this many minutes of one process; None for no limit.
        bisect: With ``until="decided"``, mix a good and a bad build by replay as soon as there is one of each, instead
            of waiting for chance (:func:`trtops.ops.campaign.bisect.bisect`).
        complete: Search for further culprits once one is confirmed.
        clean_builds: With ``complete``, number of good builds required before that search ends; builds avoid the known
            culprits. Among 30 a culprit that one in ten builds has shows with 96 %, one that one in five has with more
            than 99 %.
        confidence: The probability from which a tactic is confirmed as culprit.
        timeout_seconds: Seconds that a build, or a first inference with it, may take; None for no limit.
        parallel: Number of iterations at a time.
        devices: GPUs to build on, as ``CUDA_VISIBLE_DEVICES`` names them, one build on each at a time; by default those
            of that variable, or the first. ONNX Runtime's builds share the processor and need none.
        seed: Seed of random tactics; iteration ``i`` draws its own with ``1024 * seed + i``.
        use_deny_list: Leave out tactics that are on the deny-list.
        keep_model: Log the model file itself, with its external data.
    """

    build: BuildConfig = field(default_factory=BuildConfig)
    # Hundreds of builds need no plots, and no exact latency.
    check: CheckConfig = field(default_factory=lambda: CheckConfig(plots="never", latency_runs=10, warm_up=2))
    command: CommandCheck | None = None
    calibration_data: str | None = setting(None, convert=data_source, file="reads")
    calibration_cache: str | None = setting(None, file="reads")
    random_tactics: bool = field(default=False, metadata={"names": ("--random-tactics", "--vary-tactics")})
    until: Until = setting("decided", least=1)
    max_iterations: int = setting(200, least=1)
    max_minutes: float | None = None
    bisect: bool = True
    complete: bool = False
    clean_builds: int = setting(30, least=1)
    confidence: float = setting(0.95, most=1)
    timeout_seconds: float | None = 1800.0
    parallel: int = setting(1, least=1)
    devices: tuple[str, ...] = ()
    seed: int = 0
    use_deny_list: bool = False
    keep_model: bool = True

    def __post_init__(self) -> None:
        if self.command is not None:
            used = "data input_shapes input_dtypes iterations seed val_range min_precision_share"
            golden = " golden" * self.command.wants("{golden}")
            refuse_unused(self, {"check": used + golden}, op="debug_build with a command")
        if isinstance(self.until, str) and self.until not in ("good", "bad", "decided"):
            expected = "a number of builds, 'good', 'bad' or 'decided'"
            raise errors.ConfigError(f"until is {self.until!r}; expected {expected}.")
        if isinstance(self.until, int) and self.until > self.max_iterations:
            raise errors.ConfigError(
                f"until is {self.until}, and a campaign stops after {self.max_iterations} builds at the latest. "
                f"Raise that limit too: max_iterations={self.until} (--max-builds {self.until})."
            )

    def build_of(self, number: int, draws: bool = False) -> BuildConfig:
        """The build config of an iteration, with random tactics if the config or ``draws`` says so."""
        if not (self.random_tactics or draws):
            return self.build
        # Campaigns with other seeds share no draw. A repeated iteration draws the same again. After a timed first
        # build, iteration 1 makes the first draw.
        seed = self.seed * CAMPAIGN_SEEDS + number - (not self.random_tactics)
        return replace(self.build, options=replace(self.build.options, tactic_seed=seed))

    @property
    def place(self) -> BuildPlace:
        """Where its builds are made."""
        return BuildPlace(backend=self.build.backend, devices=self.devices, timeout_seconds=self.timeout_seconds)

    @property
    def limit(self) -> int:
        """The maximum number of iterations."""
        return self.until if isinstance(self.until, int) else self.max_iterations

    def same_builds(self, other: "DebugBuildConfig") -> bool:
        """Whether both configs make the same builds with the same verdicts."""
        names = {field.name for field in fields(self)} - _FREE_FIELDS
        return all(getattr(self, name) == getattr(other, name) for name in names)


@dataclass(frozen=True, kw_only=True)
class TacticRequest(Record):
    """One build of a campaign, and the choices that it repeats."""

    build: BuildConfig
    replay: TacticRecord | None = None  # the choices to make; the builder's own if absent
    replayed_run: str = ""  # the run whose timing cache is used


@dataclass(frozen=True, kw_only=True)
class Campaign(Record):
    """A campaign in progress, as its iterations need it: small, and able to cross process boundaries."""

    run_id: str
    experiment: str
    model: str
    model_sha256: str
    config: DebugBuildConfig
    golden_sha256: str | None = None  # digest of the golden outputs among the parent's artifacts, if there are any
    tags: tuple[tuple[str, str], ...] = ()
    # Confirmed culprits: iterations without them show what else makes builds bad.
    denied: DenyList = field(default_factory=DenyList)
    draws: bool = False  # whether iterations draw their tactics at random, since builds so far have one verdict

    def on(self, devices: Sequence[str]) -> "Campaign":
        """The same campaign on other devices; on its own if none are named."""
        return replace(self, config=replace(self.config, devices=tuple(devices))) if devices else self
