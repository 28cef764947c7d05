"""The result of convert, and a table of several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trtops.backend.base import NO_GAIN
from trtops.comparator.table import METRICS
from trtops.next_step import NextStep
from trtops.ops.evaluation.check import Evaluation, describe, describe_measurements
from trtops.ops.result import OpResult
from trtops.reports.document import Section, Table
from trtops.spec import BackendName, Precision
from trtops.tables import listed, size
from trtops.verdict import PASSED, Verdict

if TYPE_CHECKING:
    import pandas as pd


_OF_EIGHT_BITS = (
    "precision", "calibration_data", "calibration_cache", "calibration_samples", "calibration_fit", "keep",
    "qdq_op_types", "qdq_rules",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ConvertResult(OpResult):
    """The result of convert; arrays and files are in the run."""

    verdict: Verdict
    reasons: tuple[str, ...]  # why the engine is not good enough, one sentence each
    reused_from: str | None  # the run whose engine was reused, because everything that decides an engine is the same
    precision: Precision  # the requested one
    spec_sha256: str
    engine_sha256: str
    engine_bytes: int
    build_seconds: float  # of the earlier build if reused
    evaluation: Evaluation
    crashed: tuple[str, ...] = ()  # settings that were left out because they crashed the builder's process
    skipped: tuple[str, ...] = ()  # settings that the builder had no time to try
    tuning: str = ""  # what timing settings gained
    gain: str = ""  # the time of an INT8 engine compared with FP32
    left_out: str = ""  # choices that the deny-list excluded
    fallback: str = ""  # layers of a GPU's engine that run on the CPU
    carried: str = ""  # from a replay of another release or device
    ranges: str = ""  # whether the values of all tensors fit FP16 or BF16, and the layers kept where they do not
    quantization: str = ""  # layers that this build quantized, and those that placement rules exclude
    backend: BackendName = "onnxruntime"
    options: Mapping[str, Any] = field(default_factory=dict)  # of the config, as given, that are not the default

    def body(self) -> Iterable[str]:
        """The engine's origin, and the numbers."""
        origin = f"reused from run `{self.reused_from}`" if self.reused_from else f"built in {self.build_seconds:.2f} s"
        yield from (f"{self.called} engine, {size(self.engine_bytes)}, {origin}.", "")
        yield from (*self._left_out(), *describe(self.evaluation))

    def sections(self) -> Iterable[Section]:
        """The engine's origin, and the numbers missing from the report's table of outputs."""
        reused = (f"The engine is that of run `{self.reused_from}`.", "") if self.reused_from else ()
        return (Section(text="\n".join((*reused, *self._left_out(), *describe_measurements(self.evaluation)))),)

    def _left_out(self) -> Iterable[str]:
        if self.crashed:
            yield from (f"The builder crashed with {', '.join(self.crashed)}; the engine is built without.", "")
        notes = (self.carried, self.ranges, self.quantization, self.tuning, self.left_out, self.fallback)
        for note in filter(None, notes):
            yield from (f"{note}.", "")
        if self.skipped:
            yield from (f"No time to try {', '.join(self.skipped)}; `--tune` tries all.", "")

    @property
    def needed(self) -> str:
        """Data, if the calibration rests on random data, or the verdict does without proof."""
        data, evidence = ("data", "calibration_data", "calibration_cache"), self.evaluation.evidence
        at_random = self.precision in ("int8", "fp8") and self.quantization and not set(data) & self.options.keys()
        if self._is_large or not (at_random or self.verdict == "unproven"):
            return ""
        if evidence is not None and evidence.undefined:  # other shapes or data of the same kind do not help
            return ""
        inputs = listed(map(repr, evidence.shapes[0].shapes), 4) if evidence and evidence.shapes else "each input"
        example = f"for example an .npz file with an array for {inputs}"
        if at_random:
            return (
                f"real data to calibrate with (--calibration-data or --load-inputs, {example}): the ranges come from "
                "random data, so this engine says little about 8 bits"
            )
        # Where rounding alone exceeds the limits on random data, shapes do not help.
        shapes = "; or with --input-shapes the shapes that the model is used at" if self.evaluation.report else ""
        return f"data, given with --load-inputs, {example}{shapes}"

    @property
    def _is_large(self) -> bool:
        return self.verdict == "bad" and self.evaluation.verdict in PASSED

    @property
    def next_step(self) -> NextStep | None:
        """Promote a good engine, or build FP32 where 8 bits do not pay; explain a bad one."""
        if self.needed or self.verdict == "unproven" or not self.subject or self.evaluation.foreign_golden:
            return super().next_step
        if self._is_large:  # triage does not answer why
            return super().next_step
        if self.verdict == "good" and not self.pays:
            options = {name: self.options[name] for name in self.options if name not in _OF_EIGHT_BITS}
            data = {"data": self.options["calibration_data"]} if "calibration_data" in self.options else {}
            return NextStep("convert", {"model": self.subject, **data, **options, "experiment": self.experiment})
        if self.verdict == "good":
            step = NextStep("convert", {"model": self.subject, **self.options, "experiment": self.experiment})
            return NextStep("runs promote", {"run": self.run_id}) if self.run_id else step
        experiment, emulated = self.experiment if self.run_id else None, self.evaluation.emulated
        arguments: dict[str, Any] = {"model": self.subject, "experiment": experiment}
        if emulated is not None and emulated.verdict == "bad":
            # The precision is the cause, whatever the engine is: the tensor where it begins is what helps.
            arguments |= {"emulate": emulated.precision}
            if "profiles" in self.options and not {"data", "input_shapes"} & self.options.keys():
                arguments["input_shapes"] = {
                    bounds["name"]: bounds["opt"] for bounds in self.options["profiles"][0]["shapes"]
                }
            return NextStep.after(self.options, "debug accuracy", arguments)
        return NextStep.after(self.options, "triage", arguments)

    @property
    def pays(self) -> bool:
        """False if an engine in 8 bits was measured to be no faster than FP32."""
        return not self.gain.startswith(NO_GAIN)

    @property
    def figures(self) -> str:
        """Precision and size of the engine, what 8 bits gain, its latency, and its task metrics."""
        figures = (f"{self.called} engine", size(self.engine_bytes), self.gain, *self.evaluation.figures)
        return ", ".join(filter(None, figures))

    def to_frame(self) -> pd.DataFrame:
        """Return a row per output, as :meth:`~trtops.comparator.report.ComparisonReport.to_frame`."""
        return self.evaluation.report.to_frame()

    @property
    def called(self) -> str:
        """The engine's precision: the requested one, or the one of its kernels."""
        computed = self.evaluation.computed
        return self.precision.upper() if computed is None else computed.name


_TOP1 = next(metric for metric in METRICS if metric.name == "top1_agreement")


def builds_table(results: Iterable[ConvertResult], columns: Sequence[str] = ()) -> Table:
    """Return a row per engine; all ``columns`` by default."""
    rows = []
    for result in results:
        evaluation, computed = result.evaluation, result.evaluation.computed
        outputs = evaluation.report.outputs
        agreements = [share for output in outputs if (share := output.value(_TOP1)) is not None]
        row = {
            "build": result.called,
            "kernels in it": "-" if computed is None or computed.share is None else f"{computed.share:.0%}",
            "verdict": result.verdict,
            "decided by": evaluation.report.decided_by,
            "top-1 agreement": f"{min(agreements):.2%}" if agreements else "-",
            "accuracy": ", ".join(f"{task.metric} {task.actual:.4g}" for task in evaluation.tasks) or "-",
            "p50": f"{evaluation.latency.p50_ms:.3f} ms" if evaluation.latency else "-",
            "engine": size(result.engine_bytes),
            "build time": "reused" if result.reused_from else f"{result.build_seconds:.2f} s",
            "run": result.run_id[:8],
        }
        rows.append(row)
    names = tuple(columns or rows[0])
    return Table(columns=names, rows=tuple(tuple(row[name] for name in names) for row in rows))


def builds_frame(results: Iterable[ConvertResult]) -> pd.DataFrame:
    """Return a row per engine: verdict, deciding error, latency in ms, size in bytes, build time in s, and run."""
    import pandas as pd

    rows = []
    for result in results:
        latency = result.evaluation.latency
        row = {
            "build": result.called,
            "verdict": result.verdict,
            "decided_by": result.evaluation.report.decided_by,
            "p50_ms": None if latency is None else latency.p50_ms,
            "p99_ms": None if latency is None else latency.p99_ms,
            "engine_bytes": result.engine_bytes,
            "build_seconds": result.build_seconds,
            "run_id": result.run_id,
        }
        rows.append(row)
    frame: pd.DataFrame = pd.DataFrame(rows).set_index("build")
    return frame
