"""The config of a gate, and its policy: limits on latency, size, accuracy and layers, by output and by precision.

Policies are YAML files::

    latency: {ratio: 1.05, confidence: 0.99}
    size: {ratio: 1.1}
    precision_share: null              # not checked
    interface: false                   # inputs and outputs may change
    accuracy:
      widths: 2.5                      # distance from the accepted outputs, in noise widths
      widths_per_output: {boxes: 4}
      tolerances: {atol: 1.0e-4, rtol: 1.0e-4, per_output: {scores: {min_cosine: 0.999}}}
    precisions:
      int8:                            # overrides for one precision
        accuracy: {widths: 4, tolerances: {atol: .inf, rtol: .inf, min_cosine: 0.99}}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trtops import errors
from trtops.backend.ratio import Metric
from trtops.comparator.report import Tolerances
from trtops.comparator.tasks.scores import parse_loss
from trtops.ops.engines.yaml_records import merge, read_yaml
from trtops.ops.evaluation.check import CheckConfig, EngineConfig
from trtops.ops.gate.releases import HERE
from trtops.ops.gate.tolerance import BuildShare
from trtops.record import Config, setting
from trtops.spec import Precision


@dataclass(frozen=True, kw_only=True)
class LatencyLimit(Config):
    """How much slower a candidate may be."""

    ratio: float = setting(1.05, least=0.01)  # largest ratio of the candidate's latency to the accepted engine's
    confidence: float = 0.99  # that an engine whose true ratio is the limit is not decided wrongly, over all looks
    rounds: int = setting(2, least=2)  # least number of one start of the processes

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise errors.ConfigError(f"confidence is {self.confidence}; expected 0.5 or more, and less than 1.")


@dataclass(frozen=True, kw_only=True)
class SizeLimit(Config):
    """A candidate is refused if its size exceeds that of the accepted engine by both the ratio and the slack."""

    ratio: float = setting(1.1, least=1)
    slack: int = 1 << 16  # in bytes; small engines grow by large ratios for small reasons


@dataclass(frozen=True, kw_only=True)
class AccuracyLimit(Config):
    """How accurate a candidate must be."""

    tolerances: Tolerances | None = None  # compared with the reference; the defaults of the precision if None
    # Largest distance of an output from the accepted one, in noise widths; None for a retrained model.
    widths: float | None = 2.5
    widths_per_output: Mapping[str, float | None] = field(default_factory=dict)
    # Largest loss of a task metric on labelled data, compared with the accepted engine; points of the metric.
    loss: str | None = "0.5%"

    def __post_init__(self) -> None:
        if self.loss is not None:
            parse_loss(self.loss)


@dataclass(frozen=True, kw_only=True)
class Limits(Config):
    """All limits; None is not checked.

    Attributes:
        latency: Latency of an undisturbed inference: the fastest tenth, since other work on the machine slows down the
            others.
        size: Bytes of the engine.
        accuracy: Outputs.
        precision_share: Largest change of the share of layers that compute in a precision.
        interface: Names, order, shapes and dtypes of inputs and outputs must be those of the accepted engine.
    """

    latency: LatencyLimit | None = field(default_factory=LatencyLimit)
    size: SizeLimit | None = field(default_factory=SizeLimit)
    accuracy: AccuracyLimit | None = field(default_factory=AccuracyLimit)
    precision_share: float | None = 0.1
    interface: bool = True


@dataclass(frozen=True, kw_only=True)
class Policy(Config):
    """What the gate accepts.

    Attributes:
        limits: Limits for all precisions without their own.
        precisions: Complete limits of single precisions.
    """

    limits: Limits = field(default_factory=Limits)
    precisions: Mapping[Precision, Limits] = field(default_factory=dict)

    def of(self, precision: Precision) -> Limits:
        """The limits for engines of a precision."""
        return self.precisions.get(precision, self.limits)


@dataclass(frozen=True, kw_only=True)
class GateConfig(
    EngineConfig,
    uses={
        "check": "data input_shapes input_dtypes iterations seed val_range golden metric labels loss power self_check"
    },
):
    """One candidate, and its policy, with the tolerances.

    Attributes:
        candidate: Run id of a candidate that exists; built now if None.
        accepted: Run id of the engine to compare with; if None, the last accepted one of this model,
            precision and device.
        policy: What is accepted.
        minutes: Time limit of the whole gate, builds included. A candidate that is not decided by then is undecided.
        clock: What is compared with the latency limit. ``auto`` is latency (``wall``) and, where a loaded machine
            leaves it open, the CPU time of engines on the CPU. ``instructions`` needs hardware counters.
        release: Constraints file of pip for the release that builds and runs the candidate; this environment if empty.
        others: Those of releases that the accepted engine may need, which runs with its own.
        devices: GPUs to measure on, as in ``CUDA_VISIBLE_DEVICES``; those of that variable, or the first, if empty.
        use_deny_list: Exclude tactics that are on the deny-list.
        name: Registered model; the name of the model file without its suffix if None.
        register: Whether an accepted candidate gets the alias.
        require_accepted: Refuse a candidate if there is no accepted engine to compare with; by default it is accepted
            for its comparison with the model.
        accept_unproven: Accept a candidate that was compared on data that cannot support a verdict, such as random
            values in shapes that were not given.
        keep_model: Log the model file with its external data.
        distribution: How many builds are gated, and which share of all builds must be within the limits.
        timeout_seconds: Time limit of a build and of each step of the measurement; None waits without limit.
    """

    candidate: str | None = None
    accepted: str | None = None
    check: CheckConfig = field(default_factory=lambda: CheckConfig(iterations=4, latency_runs=0, plots="never"))
    policy: Policy = field(default_factory=Policy)
    minutes: float = 5.0
    clock: Metric | Literal["auto"] = "auto"
    release: str = setting(HERE, file="reads")
    others: tuple[str, ...] = setting((), file="reads")
    devices: tuple[str, ...] = ()
    use_deny_list: bool = True
    name: str | None = None
    register: bool = True
    require_accepted: bool = False
    accept_unproven: bool = False
    keep_model: bool = True
    distribution: BuildShare = field(default_factory=BuildShare)
    timeout_seconds: float | None = 1800.0

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise errors.ConfigError(f"minutes is {self.minutes}; expected more than 0.")
        if self.clock in ("cpu-time", "instructions") and self.build.backend != "onnxruntime":
            raise errors.ConfigError(f"The clock {self.clock} does not measure a GPU; expected auto or wall.")


def read_policy(path: str | Path) -> Policy:
    """Read a policy file; FormatError with every problem and its line."""
    document = read_yaml(path)
    data = {} if document.data is None else document.data
    if not isinstance(data, dict):
        document.complain((), "expected limits, such as `latency: {ratio: 1.05}`.")
        document.raise_problems()
    common = merge(Limits().to_dict(), {key: data[key] for key in data.keys() - {"precisions"}})
    # Without valid common limits, their problems are not reported again for each precision.
    below = {} if document.record(Limits, (), common) is None else common
    merged: dict[str, Any] = {"limits": below, "precisions": data.get("precisions") or {}}
    if isinstance(precisions := merged["precisions"], dict):
        merged["precisions"] = {name: merge(below, precision_limits) for name, precision_limits in precisions.items()}
    policy = document.record(Policy, (), merged)
    document.raise_problems()
    assert policy is not None
    return policy
