"""Read an engine that another program wrote: an optimized model in ONNX Runtime's format, or an ONNX file."""

from dataclasses import replace

from trtops import errors
from trtops.backend.base import Build
from trtops.backend.onnx.model import Model
from trtops.backend.onnxrt.device import environment as environment_of
from trtops.backend.onnxrt.engine import onnx_engine, open_plan, pack
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.optimize import Optimizer
from trtops.backend.onnxrt.plan import Plan, describe, read_plan
from trtops.backend.onnxrt.tactics import Candidate
from trtops.spec import BuildConfig, BuildSpec, OnnxRuntimeOptions
from trtops.tactics.record import TacticRecord

# What a file does not tell of its build.
UNKNOWN = ("release that built it", "session options of the build", "graph optimizers", "calibration data")
_IDENTIFIER = b"ORTM"  # of ONNX Runtime's format, in bytes 4 to 8


def adopt(plan: bytes, model: Model, config: BuildConfig) -> Build:
    """Return a build with an engine built elsewhere, its kernels, and the names of what is not known of it.

    An ONNX file keeps ONNX Runtime's default optimizations, under which others load it. EngineLoadError if the engine
    does not load here, or its weights are in other files.
    """
    options = config.options
    assert isinstance(options, OnnxRuntimeOptions)
    environment = environment_of(options.providers)
    is_onnx = plan[4:8] != _IDENTIFIER
    graph = _graph_of_onnx(plan, options) if is_onnx else _graph_of_ort(plan, options)
    layers, choices = describe(graph, model.proto(lean=True))
    record = TacticRecord(
        mechanism="onnxruntime",
        backend_version=environment.backend_version,
        device_sha256=environment.device_sha256,
        choices=tuple(replace(choice, replayable=False) for choice in choices),
    )
    engine = pack(plan, Candidate(), options, environment, {"format": "ONNX" if is_onnx else "ORT"})
    return Build(
        spec=BuildSpec(model_sha256=model.info.sha256, config=config, engine_sha256=engine.sha256, unknown=UNKNOWN),
        engine=engine,
        tactics=record,
        layers=layers,
        seconds=0.0,
    )


def _graph_of_ort(plan: bytes, options: OnnxRuntimeOptions) -> Plan:
    open_plan(plan, options)  # first: the reader does not check the bytes
    try:
        return read_plan(plan)
    except Exception as exc:  # damage that ONNX Runtime does not notice leads to any error
        raise errors.EngineLoadError(f"The engine's graph cannot be read ({type(exc).__name__}: {exc}).") from exc


def _graph_of_onnx(plan: bytes, options: OnnxRuntimeOptions) -> Plan:
    try:
        with Optimizer(onnx_engine(plan), options, SessionLog()) as optimizer:
            return optimizer(Candidate()).graph
    except errors.EngineBuildError as exc:
        raise errors.EngineLoadError(str(exc)) from exc
