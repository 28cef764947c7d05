"""Facts about every run, for descriptions and reports."""

from __future__ import annotations

import datetime
import math
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

import humanize

from trtops.tracking.base import RunInfo
from trtops.tracking.schema import Metric, Tag

Facts = tuple[tuple[str, str], ...]
"""Names and values, in order."""


@dataclass(frozen=True)
class RunFacts:
    """A run in groups of facts. ``following`` are commands for the next steps, each with a comment."""

    size_and_speed: Facts
    machine: Facts
    following: tuple[tuple[str, str], ...]
    links: Facts
    digests: Facts


def facts_of(info: RunInfo, verdict: str) -> RunFacts:
    """A run's facts; its verdict need not be logged yet."""
    return RunFacts(
        size_and_speed=tuple(_size_and_speed(info)),
        machine=_tagged(info, _MACHINE),
        following=tuple(_following(info, verdict)),
        links=tuple(_links(info)),
        digests=_tagged(info, _DIGESTS),
    )


_MACHINE = {
    "back end": Tag.BACKEND,
    "release": Tag.BACKEND_VERSION,
    "device": Tag.DEVICE,
    "driver": Tag.DRIVER,
    "CUDA": Tag.CUDA,
    "host": Tag.HOST,
    "commit": Tag.GIT_COMMIT,
}
_DIGESTS = {
    "model": Tag.MODEL_SHA256,
    "spec": Tag.SPEC_SHA256,
    "engine": Tag.ENGINE_SHA256,
    "data": Tag.DATA_SHA256,
    "device": Tag.DEVICE_SHA256,
    "environment": Tag.ENVIRONMENT_SHA256,
}
_LINKS = {
    "engine of run": Tag.REUSED_FROM,
    "because of run": Tag.EVIDENCE,
    "Prefect flow run": Tag.PREFECT_FLOW_RUN,
}


def _tagged(info: RunInfo, tags: dict[str, str]) -> Facts:
    return tuple((name, value) for name, tag in tags.items() if (value := info.tags.get(tag)))


def _size_and_speed(info: RunInfo) -> Iterable[tuple[str, str]]:
    precision, metrics = info.params.get("precision"), info.metrics
    if precision:
        yield "precision", precision.upper()
    if (count := metrics.get(Metric.ENGINE_BYTES)) is not None:
        yield "engine", humanize.naturalsize(count, binary=True)
    if (count := metrics.get(Metric.ENGINE_LAYERS)) is not None:
        yield "layers", f"{count:.0f}"
    if (share := metrics.get(Metric.KERNELS_LOWERED)) is not None:
        yield "kernels in that precision", f"{share:.0%}"
    for name, label in (("p50_ms", "latency p50"), ("p99_ms", "latency p99"), ("device_p50_ms", "p50 on the device")):
        if (value := metrics.get((Metric.LATENCY, name))) is not None:
            yield label, f"{value:.3f} ms"
    if (seconds := metrics.get(Metric.BUILD_SECONDS)) is not None:
        yield "build time", f"{seconds:.2f} s"


def _links(info: RunInfo) -> Iterable[tuple[str, str]]:
    yield "run", info.id
    if info.parent:
        yield "below run", info.parent
    yield from _tagged(info, _LINKS)


def _following(info: RunInfo, verdict: str) -> Iterable[tuple[str, str]]:
    """Commands for a shell, each with its purpose."""
    model = shlex.quote(info.tags.get(Tag.MODEL_PATH, "model.onnx"))
    precision = info.params.get("precision", "fp32")
    engine = "--trt" if info.tags.get(Tag.BACKEND) == "tensorrt" else "--onnxrt"
    engine += "" if precision == "fp32" else f" --{precision}"
    run = info.id
    if verdict == "error" and info.kind == "debug_build":
        yield f"trtops debug build --resume {run}", "resume it"
    elif info.kind in ("build", "iteration") and verdict == "good":
        yield f"trtops runs promote {run}", "accept this engine"
    elif info.kind in ("build", "iteration") and verdict == "bad":
        yield f"trtops debug accuracy {model} {engine}", "the first tensor that goes wrong"
        experiment = shlex.quote(info.experiment)
        yield (
            f"trtops debug build {model} {engine} --until 40 --experiment {experiment}",
            "find out whether a tactic is the cause",
        )
    elif info.kind == "debug_build" and verdict == "bad":
        yield f"trtops debug prove {run}", "swap the suspect in and out"
        yield f"trtops debug bisect {run}", "mix good and bad builds until one choice is confirmed as the culprit"
    elif info.kind == "proof" and info.tags.get(Tag.PROOF) == "confirmed":
        yield f"trtops runs deny {run}", "keep later builds from this tactic"
    elif info.kind == "gate" and verdict == "bad":
        yield f"trtops debug accuracy {model} {engine}", "the first tensor that goes wrong"
    yield f"trtops report {run}", "this page, from the store"
    yield f"trtops inspect run {run}", "everything in the store about it"


def time_text(seconds: float | None) -> str:
    """A time in UTC; empty for None."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
