"""What the gate is asked: which candidate, against what, measured how."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtops.ops.campaign.config import Place
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.gate.environments import HERE, Release
from trtops.ops.gate.policy import Policy
from trtops.record import Record
from trtops.spec import BuildConfig


@dataclass(frozen=True, kw_only=True)
class GateConfig(Record):
    """One candidate, and what it has to pass.

    Attributes:
        build: How the candidate is built.
        candidate: Run of a candidate that was built before, or what its id begins with; built now unless given.
        accepted: Run of the engine to compare with, or what its id begins with; the last accepted one of this model, precision
            and device unless given.
        check: The data to compare on. Its golden outputs and labels are used; its tolerances and latency runs are the policy's
            business.
        policy: What passes.
        release: The release that the candidate is built and run with.
        others: Releases that the accepted engine may need, which runs with its own.
        devices: GPUs to measure on, as ``CUDA_VISIBLE_DEVICES`` names them; those of that variable, or the first, unless given.
        calibration_data: Data source for INT8 calibration; the check's own data unless given.
        calibration_cache: A calibration cache file to build INT8 with, instead of calibrating.
        mind_deny_list: Leave out tactics that are on the deny-list.
        name: Registered model; the name of the model file without its ending unless given.
        register: Whether an accepted candidate gets the alias.
        keep_model: Log the model file itself, with its external data.
        timeout_seconds: How long a build, or one step of measuring, may take; None waits for ever.
    """

    build: BuildConfig = field(default_factory=BuildConfig)
    candidate: str | None = None
    accepted: str | None = None
    check: CheckConfig = field(default_factory=lambda: CheckConfig(iterations=4, latency_runs=0, plots="never"))
    policy: Policy = field(default_factory=Policy)
    release: Release = HERE
    others: tuple[Release, ...] = ()
    devices: tuple[str, ...] = ()
    calibration_data: str | None = None
    calibration_cache: str | None = None
    mind_deny_list: bool = True
    name: str | None = None
    register: bool = True
    keep_model: bool = True
    timeout_seconds: float | None = 1800.0

    @property
    def place(self) -> Place:
        """Where it is built and measured."""
        return Place(backend=self.build.backend, devices=self.devices, timeout_seconds=self.timeout_seconds)

    @property
    def wrong_device(self) -> str:
        """Why the back end has no such devices; empty if it may have them."""
        if self.build.backend == "onnxruntime" and self.devices:
            return f"ONNX Runtime's engines run on the processor; {', '.join(self.devices)!r} is not it. Ask for cpu."
        if self.build.backend == "tensorrt" and "cpu" in self.devices:
            return "TensorRT's engines run on a GPU; cpu is none."
        return ""
