"""Evaluate: check an engine that another program built, and record it, with what is not known of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from trtops import errors
from trtops.backend.base import Build, Caches
from trtops.backend.engines import ENGINE_SUFFIXES, backend_of_suffix
from trtops.backend.onnx.model import Model
from trtops.backend.worker import IsolatedBackend
from trtops.comparator.arrays import as_arrays
from trtops.comparator.report import ComparisonReport
from trtops.metadata import TensorMetadata, is_dynamic
from trtops.next_step import arguments_of
from trtops.ops.arguments import checked_with_export
from trtops.ops.engines.convert import evaluate_build, log_model
from trtops.ops.engines.evaluate_result import EngineVerdict, EvaluateResult
from trtops.ops.engines.request import CommandData, check_names
from trtops.ops.evaluation.check import CheckConfig, Evaluation
from trtops.ops.evaluation.precision_check import check_precision, engine_precision
from trtops.ops.result import OnProgress, model_file, op_run, run_name, run_step, tracker_or_default
from trtops.record import Config, setting
from trtops.spec import (
    SHORT_NAMES,
    BackendName,
    BuildConfig,
    OnnxRuntimeOptions,
    Precision,
    TensorRTOptions,
    short_device,
)
from trtops.system.files import read_regular
from trtops.system.worker import Worker, warm_worker
from trtops.tables import listed
from trtops.tracking import builds
from trtops.tracking.base import Run, Tracker
from trtops.tracking.builds import log_materials

# Below this correlation with the model's outputs, precision is no explanation.
_UNLIKE = 0.8


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(Config):
    """How an engine built elsewhere is evaluated.

    Attributes:
        precision: The precision that the engine was built for (default: the lowest that its kernels compute in). A
            plan does not show whether FP32 products may round to TF32, as TensorRT allows by default: the limits allow
            it unless ``fp32`` is given.
        providers: ONNX Runtime's execution providers that run the engine.
        check: How the engine is evaluated, and on what data.
        keep_model: Log the model file itself, with its external data.
        timeout_seconds: Time limit of the child process that reads and first runs an engine; None sets no limit.
    """

    precision: Precision | None = None
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    check: CheckConfig = field(default_factory=lambda: CheckConfig(self_check=True))
    keep_model: bool = True
    timeout_seconds: float | None = setting(None, least=0)


@checked_with_export
def evaluate(
    engine: str | Path,
    model: str | Path | Model,
    config: EvaluateConfig = EvaluateConfig(),
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    progress: OnProgress | None = None,
) -> EvaluateResult:
    """Compare an engine that another program built with its model, and record it in a run.

    The engine is a TensorRT plan (``.plan``, ``.engine``, ``.trt``), an optimized model of ONNX Runtime (``.ort``), or
    an ONNX file, which ONNX Runtime optimizes when it loads it. Of a folder, each engine is evaluated, and one that
    does not load has the verdict ``error``. ``model`` may be a folder too: an engine belongs to the ONNX file whose
    name, without its ending, begins the engine's. The spec of the run names what is not known.

    Raises EngineLoadError if an engine is damaged, or was built for another release or device; ConfigError for other
    files.

    >>> result = trtops.evaluate("model.onnx", "model.onnx", data="feed.npz")
    >>> result.verdict, result.engines[0].unknown
    ('good', ('release that built it', ...))
    """
    tracker = tracker_or_default(tracker)
    path = Path(engine)
    if not path.exists():
        raise errors.ConfigError(f"Engine {str(path)!r} does not exist; expected an engine file, or a folder of them.")
    models = model_file(model)
    if models.is_dir() and not any(models.glob("*.onnx")):
        raise errors.ConfigError(f"{str(models)!r} holds no model; expected ONNX files (.onnx).")
    options, outcomes = arguments_of(config), list[EngineVerdict]()
    logged: dict[str, Any] = {"tracker": tracker, "experiment": experiment, "tags": tags, "parent": parent}
    with warm_worker() as worker:
        if not path.is_dir():
            return _evaluate_file(path, _model_of(path, model), config, worker, options, **logged)
        files = _engines_in(path, models)
        for number, file in enumerate(files, 1):
            try:
                result = _evaluate_file(file, _model_of(file, model), config, worker, options, **logged)
                outcomes.extend(result.engines)
            except (errors.TrackingError, errors.ScriptError):
                raise
            except errors.TrtopsError as exc:
                backend = _backend_of(file)
                outcomes.append(EngineVerdict(file=str(file), verdict="error", reasons=(str(exc),), backend=backend))
            if progress is not None:
                progress(number, len(files))
    return EvaluateResult(title=f"evaluate {path.name}", subject=str(path), engines=tuple(outcomes), options=options)


def _backend_of(file: Path) -> BackendName:
    backend = "onnxruntime" if file.suffix.lower() == ".onnx" else backend_of_suffix(file.suffix)
    if backend is None:
        raise errors.ConfigError(f"{str(file)!r} is no engine; expected {', '.join(ENGINE_SUFFIXES)} or .onnx.")
    return backend  # type: ignore[return-value]


def _engines_in(folder: Path, model: Path) -> list[Path]:
    models = {file.resolve() for file in (model.glob("*.onnx") if model.is_dir() else (model,))}
    suffixes = (*ENGINE_SUFFIXES, ".onnx")
    files = [file for file in sorted(folder.iterdir()) if file.suffix.lower() in suffixes]
    engines = [file for file in files if file.resolve() not in models]
    if not engines:
        expected = f"files that end in {listed(suffixes)}, besides the models"
        raise errors.ConfigError(f"{str(folder)!r} holds no engine; expected {expected}.")
    return engines


def _model_of(engine: Path, model: str | Path | Model) -> str | Path | Model:
    """The model of an engine: of a folder, the file with the longest name that begins the engine's."""
    models = model_file(model)
    if not models.is_dir():
        return model
    candidates = [file for file in models.glob("*.onnx") if engine.stem.startswith(file.stem)]
    if not candidates:
        raise errors.ConfigError(f"No model in {str(models)!r} has a name that {engine.name!r} begins with.")
    return max(candidates, key=lambda file: len(file.stem))


def _evaluate_file(
    file: Path,
    model: str | Path | Model,
    config: EvaluateConfig,
    worker: Worker,
    options: Mapping[str, Any],
    *,
    tracker: Tracker,
    experiment: str | None,
    **logged: Any,
) -> EvaluateResult:
    backend_name, path = _backend_of(file), model_file(model)
    try:
        plan = read_regular(file)
    except OSError as exc:
        raise errors.EngineLoadError(f"{str(file)!r} cannot be read: {exc.strerror}.") from exc
    loaded = run_step("load", Model.load, model)
    engine_options = OnnxRuntimeOptions(providers=config.providers)
    build_config = BuildConfig(
        precision=config.precision or "fp32",
        options=engine_options if backend_name == "onnxruntime" else TensorRTOptions(),
    )
    check_names(loaded, build_config, config.check)
    backend = IsolatedBackend(backend_name, config.timeout_seconds, worker)
    name = run_name(file.stem, SHORT_NAMES[backend_name])
    with op_run(tracker, experiment or path.stem, name, kind="evaluate", model=path, **logged) as op:
        run = op.run
        run.log_params({"engine": file.name})
        build = run_step("read engine", backend.adopt, plan, loaded, build_config)
        if config.precision is None:
            spec = replace(build.spec, unknown=(*build.spec.unknown, "requested precision"))
            spec = replace(spec, config=replace(spec.config, precision=engine_precision(build)))
            build = replace(build, spec=spec)
        builds.log_spec(run, build.spec, build.engine.environment)
        builds.log_build(run, build, loaded.info, backend.engine_suffix)
        log_model(run, loaded, keep=config.keep_model)
        evaluation, reasons = _evaluation(_allowing_tf32(build, config), loaded, backend, config, run)
        computed = check_precision(build)
        outcome = EngineVerdict(
            file=str(file),
            verdict="bad" if evaluation is None else evaluation.verdict,
            reasons=reasons,
            run_id=run.id,
            backend=backend_name,
            called=computed.name,
            engine_sha256=build.engine.sha256,
            engine_bytes=len(build.engine.plan),
            unknown=build.spec.unknown,
            evaluation=evaluation,
        )
        device = short_device(build.engine.environment.device)
        run.rename(run_name(file.stem, computed.name, SHORT_NAMES[backend_name], device, verdict=outcome.verdict))
        title = f"evaluate {file.name}"
        return op.finish(EvaluateResult(title=title, subject=str(file), engines=(outcome,), options=options))


def _allowing_tf32(build: Build, config: EvaluateConfig) -> Build:
    """Return a build whose limits allow TF32 if the engine may compute in it."""
    options, environment = build.spec.config.options, build.engine.environment
    if config.precision is not None or not (isinstance(options, TensorRTOptions) and environment.has_tf32):
        return build
    allowing = replace(build.spec.config, options=replace(options, tf32=True))
    return replace(build, spec=replace(build.spec, config=allowing))


def _evaluation(
    build: Build, model: Model, backend: IsolatedBackend, config: EvaluateConfig, run: Run
) -> tuple[Evaluation | None, tuple[str, ...]]:
    """The evaluation of an engine, None if it does not fit the model, and why it is not good."""
    runner = backend.runner(build.engine)
    with runner:
        inputs = runner.get_input_metadata(use_numpy_dtypes=False)
    if misfits := _misfits(inputs, TensorMetadata.of(model.info.inputs)):
        return None, misfits
    check = config.check
    if check.data is None and not build.spec.config.profiles:
        # An engine may be built for fewer shapes than the model has.
        fixed: dict[str, Any] = {}
        for name, spec in inputs.items():
            if spec.shape is not None and not any(map(is_dynamic, spec.shape)):
                fixed[name] = tuple(spec.shape)
        check = replace(check, input_shapes={**fixed, **check.input_shapes})
    data = CommandData(model, check)
    profiles = build.spec.config.profiles
    feeds = data.feeds(profiles)
    log_materials(run, caches=Caches(), check=check, feeds=feeds, data=check.data, golden=check.golden)
    data.golden(profiles)  # first, since the engine would be blamed for data that the model does not accept
    run_step("first inference", backend.first_inference, build.engine, next(iter(feeds)))
    evaluation = evaluate_build(build, backend, data, check, run)
    causes = _resemblance(evaluation.report, build.spec.config.precision)
    if evaluation.report.bad and len(evaluation.report.outputs) > 1:
        with backend.runner(build.engine) as runner:
            outputs = as_arrays(runner.infer(next(iter(feeds))))
        golden = as_arrays(data.golden(profiles)[0][1][0])
        causes = tuple(_exchanged(outputs, golden, evaluation.report)) or causes
    return evaluation, (*causes, *evaluation.reasons)


def _misfits(inputs: TensorMetadata, expected: TensorMetadata) -> tuple[str, ...]:
    """Why an engine with these inputs is of another model than one with the expected inputs."""
    if inputs.keys() != expected.keys():
        names, model_names = (listed(map(repr, side), 6) or "none" for side in (inputs, expected))
        return (f"the engine is of another model: its inputs are {names}; the model's are {model_names}",)
    texts = []
    for name, spec in inputs.items():
        dtypes = {str(spec.dtype), str(expected[name].dtype)}
        # TensorRT before 10 has no INT64.
        if len(dtypes) > 1 and dtypes != {"int32", "int64"}:
            texts.append(f"input {name!r} of the engine is {spec.dtype}; the model's is {expected[name].dtype}")
        shape, model_shape = spec.shape, expected[name].shape
        if shape is None or model_shape is None:
            continue
        same = [is_dynamic(a) or is_dynamic(b) or a == b for a, b in zip(shape, model_shape)]
        if len(shape) != len(model_shape) or not all(same):
            texts.append(f"input {name!r} of the engine has shape {list(shape)}; the model's is {list(model_shape)}")
    return tuple(texts)


def _exchanged(
    outputs: Mapping[str, np.ndarray], golden: Mapping[str, np.ndarray], report: ComparisonReport
) -> Iterator[str]:
    """Yield a sentence for each bad output that has the values of another output of the model."""
    for name in [output.name for output in report.bad if output.name in outputs]:
        distances = {}
        for other, array in golden.items():
            kinds = array.dtype.kind + outputs[name].dtype.kind
            if array.shape == outputs[name].shape and set(kinds) <= set("fiu"):
                difference = outputs[name].astype(np.float64) - array
                distances[other] = np.linalg.norm(difference) / (np.linalg.norm(array.astype(np.float64)) or 1.0)
        nearest = min(distances, key=distances.__getitem__, default=name)
        if nearest != name and 10 * distances[nearest] < min(distances.get(name, 1.0), 1.0):
            yield f"output {name!r} has the values of the model's {nearest!r}"


def _resemblance(report: ComparisonReport, precision: Precision) -> tuple[str, ...]:
    """What the errors of a bad engine suggest, in a sentence, if precision does not explain them."""
    correlations = []
    for output in report.bad:
        correlation = None if output.statistics is None else output.statistics.correlation
        correlations += [] if correlation is None or np.isnan(correlation) else [correlation]
    if not correlations:
        return ()
    best = max(correlations)
    if best < _UNLIKE:
        cause = "the engine may be of another model or of other weights"
        return (f"the outputs do not follow the model's (correlation {best:.2f}): {cause}",)
    if precision == "fp32":
        cause = "more than FP32 rounds: the engine may be of an earlier version of the weights, of a lower precision "
        cause += "(--precision), or optimized inexactly"
    elif precision in ("int8", "fp8"):
        cause = "more than 8 bits explain: the engine may have been quantized badly"
    else:
        return ()
    return (f"the outputs follow the model's (correlation {best:.3f}), but differ by {cause}",)
