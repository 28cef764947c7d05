# Written by `python -m docs.flow_stub`.
# ruff: noqa
# fmt: off
from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
from concurrent.futures._base import Future
from onnx.onnx_ml_pb2 import ModelProto
from os import PathLike
from trtops.backend.base import Build
from trtops.backend.base import Engine
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.submodel import SubModel
from trtops.backend.runner import BaseRunner
from trtops.backend.torch import TorchObject
from trtops.calibration.cache import CalibrationCache
from trtops.calibration.data import DataSource
from trtops.comparator.report import Tolerances
from trtops.ops.auditing.op import AuditConfig
from trtops.ops.auditing.result import AuditResult
from trtops.ops.bundling.op import BundleConfig
from trtops.ops.bundling.op import BundleResult
from trtops.ops.campaign.bisect_result import BisectConfig
from trtops.ops.campaign.bisect_result import BisectResult
from trtops.ops.campaign.bisect_result import Unit
from trtops.ops.campaign.config import Campaign
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import CampaignProgress
from trtops.ops.campaign.debug_build import DebugBuildResult
from trtops.ops.campaign.diff_tactics import DiffTacticsConfig
from trtops.ops.campaign.diff_tactics import DiffTacticsResult
from trtops.ops.campaign.iteration import CampaignBuild
from trtops.ops.campaign.prove import ProveConfig
from trtops.ops.campaign.prove import ProveResult
from trtops.ops.comparing.compare import CompareConfig
from trtops.ops.comparing.compare import CompareResult
from trtops.ops.engines.build_list import BuildListConfig
from trtops.ops.engines.build_list import BuildListResult
from trtops.ops.engines.calibrate import CalibrateConfig
from trtops.ops.engines.calibrate import CalibrateResult
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.engines.convert_result import ConvertResult
from trtops.ops.engines.evaluate import EvaluateConfig
from trtops.ops.engines.evaluate_result import EvaluateResult
from trtops.ops.engines.model_list import ModelList
from trtops.ops.engines.request import CommandData
from trtops.ops.engines.sensitivity import SensitivityConfig
from trtops.ops.engines.sensitivity import SensitivityResult
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.exporting import ExportConfig
from trtops.ops.exporting import ExportResult
from trtops.ops.gate.matrix import MatrixResult
from trtops.ops.gate.measurement import GateSession
from trtops.ops.gate.policy import AccuracyLimit
from trtops.ops.gate.policy import GateConfig
from trtops.ops.gate.policy import LatencyLimit
from trtops.ops.gate.policy import Limits
from trtops.ops.gate.policy import SizeLimit
from trtops.ops.gate.result import GateResult
from trtops.ops.model.inspect.engines import InspectEnginesConfig
from trtops.ops.model.inspect.engines import InspectEnginesResult
from trtops.ops.registry.promote import PromoteConfig
from trtops.ops.registry.promote import PromoteResult
from trtops.ops.search.accuracy import AccuracyConfig
from trtops.ops.search.accuracy import AccuracyResult
from trtops.ops.search.choose import ChooseConfig
from trtops.ops.search.choose import ChooseListResult
from trtops.ops.search.choose import ChooseResult
from trtops.ops.search.command import CommandCheck
from trtops.ops.search.delta import Step
from trtops.ops.search.precision import Candidate
from trtops.ops.search.precision import PrecisionConfig
from trtops.ops.search.precision import PrecisionResult
from trtops.ops.search.reduce import ReduceConfig
from trtops.ops.search.reduce import ReduceResult
from trtops.ops.search.submodel import CheckOutcome
import trtops.ops.triaging.result
from trtops.ops.triaging.result import TriageConfig
from trtops.ops.triaging.result import TriageResult
from trtops.spec import BuildConfig
from trtops.spec import OnnxRuntimeOptions
from trtops.spec import OptimizationProfile
from trtops.spec import TensorRTOptions
from trtops.tracking.base import Tracker
from typing import Any
from typing import Literal

def accuracy(
    model: str | PathLike[str] | Model | ModelProto | TorchObject, actual: BuildConfig | Callable[[ModelProto],
    BaseRunner], config: AccuracyConfig = ..., *, tracker: Tracker | None = ..., experiment: str | None = ..., tags:
    Mapping[str, str] | None = ..., parent: str | None = ..., file: str | PathLike[str] | None = ..., data:
    DataSource | None = ..., shapes: Mapping[str, Sequence[int]] = ..., input_dtypes: Mapping[str, str] = ...,
    iterations: int = ..., seed: int = ..., val_range: Mapping[str, tuple[float, float]] = ..., tolerances:
    Tolerances | None | Mapping[str, Any] = ...
) -> AccuracyResult: ...

def audit(
    config: AuditConfig | str = ..., *, tracker: Tracker | None = ..., progress: Callable[[int, int | None], None] |
    None = ..., runs: Sequence[str] = ..., experiment: str | None = ..., tags: Sequence[tuple[str, str]] = ...,
    accepted: bool = ..., sample: int | None = ..., seed: int = ..., rebuild: bool = ..., ways:
    Sequence[Literal['replay', 'timing cache', 'plain']] = ..., at_least: Literal['bytes', 'tactics', 'outputs',
    'tolerance'] = ..., materials: str | None = ..., keys: Sequence[str] = ..., certificates: Sequence[str] = ...,
    log: Sequence[str] = ..., timeout_seconds: float | None = ...
) -> AuditResult: ...

def bisect(
    run: str, bad: str | None = ..., config: BisectConfig | None = ..., *, tracker: Tracker | None = ..., tags:
    Mapping[str, str] | None = ..., evaluate: Callable[[Engine], bool | str | CheckOutcome] | None = ..., progress:
    Callable[[int, int | None], None] | None = ..., held_units: Sequence[Unit] = ..., confidence: float = ...,
    max_builds: int = ..., max_minutes: float | None = ..., seed: int = ..., devices: Sequence[str] = ...,
    allow_scripts: bool = ...
) -> BisectResult: ...

def build_list(
    models: str | PathLike[str] | ModelList, config: BuildListConfig = ..., *, tracker: Tracker | None = ...,
    experiment: str | None = ..., tags: Mapping[str, str] | None = ..., convert_one: Callable[[str | Model,
    ConvertConfig, str, Mapping[str, str]], ConvertResult] | None = ..., backends: Sequence[Literal['onnxruntime',
    'tensorrt']] | None = ..., only_new: bool = ..., attempts: int = ..., settle_seconds: float = ...
) -> BuildListResult: ...

def bundle(
    run: str, config: BundleConfig = ..., *, tracker: Tracker | None = ..., output: str | None = ..., materials: str
    | None = ..., allow_scripts: bool = ..., timeout_seconds: float = ...
) -> BundleResult: ...

def calibrate(
    model: str | PathLike[str] | Model | TorchObject, config: CalibrateConfig = ..., *, tracker: Tracker | None =
    ..., experiment: str | None = ..., tags: Mapping[str, str] | None = ..., progress: Callable[[int, int | None],
    None] | None = ..., calibration_data: DataSource | None = ..., algorithm: Literal['best', 'minmax', 'entropy',
    'percentile'] = ..., percentile: float = ..., batch: int | None = ..., samples: int | None = ..., min_samples:
    int = ..., output: str | None = ..., profiles: Sequence[OptimizationProfile] | Mapping[str, Any] = ...,
    calibration_samples: int = ..., calibration_fit: Literal['refuse', 'partial'] = ..., keep: Sequence[str] = ...,
    qdq_op_types: Sequence[str] = ..., qdq_rules: Sequence[str] | None = ..., mark: Sequence[str] = ..., options:
    OnnxRuntimeOptions | TensorRTOptions | Mapping[str, Any] = ..., data: DataSource | None = ..., shapes:
    Mapping[str, Sequence[int]] = ..., input_dtypes: Mapping[str, str] = ..., iterations: int = ..., seed: int =
    ..., val_range: Mapping[str, tuple[float, float]] = ..., golden: str | None = ..., metric: DataSource | None =
    ..., labels: str | None = ..., loss: str | None = ..., tolerances: Tolerances | None | Mapping[str, Any] = ...,
    warm_up: int = ..., latency_runs: int = ..., plots: Literal['always', 'bad', 'never'] = ...,
    min_precision_share: float = ..., power: bool = ..., self_check: bool | None = ..., backend:
    Literal['onnxruntime', 'tensorrt'] = ...
) -> CalibrateResult: ...

def choose(
    model: str | PathLike[str] | Model | TorchObject, config: ChooseConfig = ..., *, tracker: Tracker | None = ...,
    experiment: str | None = ..., tags: Mapping[str, str] | None = ..., parent: str | None = ..., progress:
    Callable[[int, int | None], None] | None = ..., calibration_data: DataSource | None = ..., calibration_cache:
    str | None = ..., loss: str | None = ..., latency: str | None = ..., minutes: float = ..., on:
    Sequence[Literal['cpu', 'cuda', 'tensorrt']] = ..., precisions: Sequence[Literal['fp32', 'fp16', 'bf16', 'fp8',
    'int8']] = ..., resume: str | None = ..., profiles: Sequence[OptimizationProfile] | Mapping[str, Any] = ...,
    calibration_samples: int = ..., calibration_fit: Literal['refuse', 'partial'] = ..., keep: Sequence[str] = ...,
    qdq_op_types: Sequence[str] = ..., qdq_rules: Sequence[str] | None = ..., data: DataSource | None = ..., shapes:
    Mapping[str, Sequence[int]] = ..., input_dtypes: Mapping[str, str] = ..., iterations: int = ..., seed: int =
    ..., val_range: Mapping[str, tuple[float, float]] = ..., golden: str | None = ..., metric: DataSource | None =
    ..., labels: str | None = ..., tolerances: Tolerances | None | Mapping[str, Any] = ..., warm_up: int = ...,
    latency_runs: int = ...
) -> ChooseResult: ...

def choose_all(
    models: Sequence[str | PathLike[str] | Model], config: ChooseConfig = ..., *, tracker: Tracker | None = ...,
    experiment: str | None = ..., tags: Mapping[str, str] | None = ..., progress: Callable[[int, int | None], None]
    | None = ..., calibration_data: DataSource | None = ..., calibration_cache: str | None = ..., loss: str | None =
    ..., latency: str | None = ..., minutes: float = ..., on: Sequence[Literal['cpu', 'cuda', 'tensorrt']] = ...,
    precisions: Sequence[Literal['fp32', 'fp16', 'bf16', 'fp8', 'int8']] = ..., resume: str | None = ..., profiles:
    Sequence[OptimizationProfile] | Mapping[str, Any] = ..., calibration_samples: int = ..., calibration_fit:
    Literal['refuse', 'partial'] = ..., keep: Sequence[str] = ..., qdq_op_types: Sequence[str] = ..., qdq_rules:
    Sequence[str] | None = ..., data: DataSource | None = ..., shapes: Mapping[str, Sequence[int]] = ...,
    input_dtypes: Mapping[str, str] = ..., iterations: int = ..., seed: int = ..., val_range: Mapping[str,
    tuple[float, float]] = ..., golden: str | None = ..., metric: DataSource | None = ..., labels: str | None = ...,
    tolerances: Tolerances | None | Mapping[str, Any] = ..., warm_up: int = ..., latency_runs: int = ...
) -> ChooseResult | ChooseListResult: ...

def compare(
    actual: str | PathLike[str] | Model | TorchObject, golden: str | PathLike[str] | Model | TorchObject, config:
    CompareConfig | CheckConfig = ..., *, tracker: Tracker | None = ..., experiment: str | None = ..., tags:
    Mapping[str, str] | None = ..., parent: str | None = ..., data: DataSource | None = ..., shapes: Mapping[str,
    Sequence[int]] = ..., input_dtypes: Mapping[str, str] = ..., iterations: int = ..., seed: int = ..., val_range:
    Mapping[str, tuple[float, float]] = ..., metric: DataSource | None = ..., labels: str | None = ..., loss: str |
    None = ..., tolerances: Tolerances | None | Mapping[str, Any] = ..., warm_up: int = ..., latency_runs: int =
    ..., power: bool = ..., self_check: bool | None = ...
) -> CompareResult: ...

def convert(
    model: str | PathLike[str] | Model | TorchObject, config: ConvertConfig = ..., *, tracker: Tracker | None = ...,
    experiment: str | None = ..., tags: Mapping[str, str] | None = ..., parent: str | None = ..., built:
    Callable[[Build], object] | None = ..., opened: CommandData | None = ..., calibration_data: DataSource | None =
    ..., calibration_cache: str | None = ..., timing_cache: str | None = ..., replay: str | None = ..., carry_over:
    bool = ..., measure_ranges: bool = ..., use_deny_list: bool = ..., rebuild: bool = ..., keep_model: bool = ...,
    isolated: bool | None = ..., timeout_seconds: float | None = ..., max_engine_bytes: int | None = ..., precision:
    Literal['fp32', 'fp16', 'bf16', 'fp8', 'int8'] = ..., profiles: Sequence[OptimizationProfile] | Mapping[str,
    Any] = ..., calibration_samples: int = ..., calibration_fit: Literal['refuse', 'partial'] = ..., keep:
    Sequence[str] = ..., qdq_op_types: Sequence[str] = ..., qdq_rules: Sequence[str] | None = ..., mark:
    Sequence[str] = ..., options: OnnxRuntimeOptions | TensorRTOptions | Mapping[str, Any] = ..., data: DataSource |
    None = ..., shapes: Mapping[str, Sequence[int]] = ..., input_dtypes: Mapping[str, str] = ..., iterations: int =
    ..., seed: int = ..., val_range: Mapping[str, tuple[float, float]] = ..., golden: str | None = ..., metric:
    DataSource | None = ..., labels: str | None = ..., loss: str | None = ..., tolerances: Tolerances | None |
    Mapping[str, Any] = ..., warm_up: int = ..., latency_runs: int = ..., plots: Literal['always', 'bad', 'never'] =
    ..., min_precision_share: float = ..., power: bool = ..., self_check: bool | None = ..., backend:
    Literal['onnxruntime', 'tensorrt'] = ...
) -> ConvertResult: ...

def debug_build(
    model: str | PathLike[str] | Model | None | TorchObject = ..., config: DebugBuildConfig | None = ..., *,
    tracker: Tracker | None = ..., resume: str | None = ..., experiment: str | None = ..., tags: Mapping[str, str] |
    None = ..., evaluate: Callable[[Engine], bool | str | CheckOutcome] | None = ..., submit: Callable[[Campaign,
    int], Future[CampaignBuild]] | None = ..., progress: Callable[[CampaignProgress], None] | None = ...,
    allow_scripts: bool = ..., command: CommandCheck | None | Mapping[str, Any] = ..., calibration_data: DataSource
    | None = ..., calibration_cache: str | None = ..., random_tactics: bool = ..., until: int | Literal['good',
    'bad', 'decided'] = ..., max_iterations: int = ..., max_minutes: float | None = ..., bisect: bool = ...,
    complete: bool = ..., clean_builds: int = ..., confidence: float = ..., timeout_seconds: float | None = ...,
    parallel: int = ..., devices: Sequence[str] = ..., seed: int = ..., use_deny_list: bool = ..., keep_model: bool
    = ..., precision: Literal['fp32', 'fp16', 'bf16', 'fp8', 'int8'] = ..., profiles: Sequence[OptimizationProfile]
    | Mapping[str, Any] = ..., calibration_samples: int = ..., calibration_fit: Literal['refuse', 'partial'] = ...,
    keep: Sequence[str] = ..., qdq_op_types: Sequence[str] = ..., qdq_rules: Sequence[str] | None = ..., mark:
    Sequence[str] = ..., options: OnnxRuntimeOptions | TensorRTOptions | Mapping[str, Any] = ..., data: DataSource |
    None = ..., shapes: Mapping[str, Sequence[int]] = ..., input_dtypes: Mapping[str, str] = ..., iterations: int =
    ..., check_seed: int = ..., val_range: Mapping[str, tuple[float, float]] = ..., golden: str | None = ...,
    metric: DataSource | None = ..., labels: str | None = ..., loss: str | None = ..., tolerances: Tolerances | None
    | Mapping[str, Any] = ..., warm_up: int = ..., latency_runs: int = ..., plots: Literal['always', 'bad', 'never']
    = ..., min_precision_share: float = ..., power: bool = ..., self_check: bool | None = ..., backend:
    Literal['onnxruntime', 'tensorrt'] = ...
) -> DebugBuildResult: ...

def diff_tactics(
    config: DiffTacticsConfig | str = ..., *, tracker: Tracker | None = ..., runs: Sequence[str] = ..., experiment:
    str | None = ..., tags: Mapping[str, str] = ..., folder: str | None = ..., good: str | None = ..., bad: str |
    None = ..., by: Literal['tactic', 'format', 'precision', 'algorithm'] = ..., confidence: float = ...
) -> DiffTacticsResult: ...

def evaluate(
    engine: str | PathLike[str], model: str | PathLike[str] | Model | TorchObject, config: EvaluateConfig = ..., *,
    tracker: Tracker | None = ..., experiment: str | None = ..., tags: Mapping[str, str] | None = ..., parent: str |
    None = ..., progress: Callable[[int, int | None], None] | None = ..., precision: Literal['fp32', 'fp16', 'bf16',
    'fp8', 'int8'] | None = ..., providers: Sequence[str] = ..., keep_model: bool = ..., timeout_seconds: float |
    None = ..., data: DataSource | None = ..., shapes: Mapping[str, Sequence[int]] = ..., input_dtypes: Mapping[str,
    str] = ..., iterations: int = ..., seed: int = ..., val_range: Mapping[str, tuple[float, float]] = ..., golden:
    str | None = ..., metric: DataSource | None = ..., labels: str | None = ..., loss: str | None = ..., tolerances:
    Tolerances | None | Mapping[str, Any] = ..., warm_up: int = ..., latency_runs: int = ..., plots:
    Literal['always', 'bad', 'never'] = ..., min_precision_share: float = ..., power: bool = ..., self_check: bool |
    None = ...
) -> EvaluateResult: ...

def export(
    run: str, config: ExportConfig = ..., *, tracker: Tracker | None = ..., triton: str | None = ..., name: str |
    None = ..., max_batch: int | None = ..., instances: int = ..., labels: str | None = ..., allow_unproven: bool =
    ..., allow_scripts: bool = ..., materials: str | None = ...
) -> ExportResult: ...

def gate(
    model: str | PathLike[str] | Model | TorchObject, config: GateConfig = ..., *, tracker: Tracker | None = ...,
    experiment: str | None = ..., tags: Mapping[str, str] | None = ..., parent: str | None = ..., session:
    GateSession | None = ..., calibration_data: DataSource | None = ..., calibration_cache: str | None = ...,
    candidate: str | None = ..., accepted: str | None = ..., minutes: float = ..., clock: Literal['wall',
    'cpu-time', 'instructions'] | Literal['auto'] = ..., release: str = ..., others: Sequence[str] = ..., devices:
    Sequence[str] = ..., use_deny_list: bool = ..., name: str | None = ..., register: bool = ..., require_accepted:
    bool = ..., accept_unproven: bool = ..., keep_model: bool = ..., timeout_seconds: float | None = ..., precision:
    Literal['fp32', 'fp16', 'bf16', 'fp8', 'int8'] = ..., profiles: Sequence[OptimizationProfile] | Mapping[str,
    Any] = ..., calibration_samples: int = ..., calibration_fit: Literal['refuse', 'partial'] = ..., keep:
    Sequence[str] = ..., qdq_op_types: Sequence[str] = ..., qdq_rules: Sequence[str] | None = ..., mark:
    Sequence[str] = ..., options: OnnxRuntimeOptions | TensorRTOptions | Mapping[str, Any] = ..., data: DataSource |
    None = ..., shapes: Mapping[str, Sequence[int]] = ..., input_dtypes: Mapping[str, str] = ..., iterations: int =
    ..., seed: int = ..., val_range: Mapping[str, tuple[float, float]] = ..., golden: str | None = ..., metric:
    DataSource | None = ..., labels: str | None = ..., loss: str | None = ..., power: bool = ..., self_check: bool |
    None = ..., precisions: Mapping[Literal['fp32', 'fp16', 'bf16', 'fp8', 'int8'], Limits] | Mapping[str, Any] =
    ..., builds: int = ..., share: float | None = ..., tolerated: float = ..., latency: LatencyLimit | None |
    Mapping[str, Any] = ..., size: SizeLimit | None | Mapping[str, Any] = ..., accuracy: AccuracyLimit | None |
    Mapping[str, Any] = ..., precision_share: float | None = ..., interface: bool = ..., backend:
    Literal['onnxruntime', 'tensorrt'] = ...
) -> GateResult: ...

def gate_all(
    models: Sequence[str | PathLike[str] | Model], config: GateConfig = ..., *, releases: Sequence[str] = ...,
    precisions: Sequence[Literal['fp32', 'fp16', 'bf16', 'fp8', 'int8']] = ..., kernel: str = ..., tracker: Tracker
    | None = ..., experiment: str | None = ..., tags: Mapping[str, str] | None = ..., progress: Callable[[int, int |
    None], None] | None = ..., calibration_data: DataSource | None = ..., calibration_cache: str | None = ...,
    candidate: str | None = ..., accepted: str | None = ..., minutes: float = ..., clock: Literal['wall',
    'cpu-time', 'instructions'] | Literal['auto'] = ..., release: str = ..., others: Sequence[str] = ..., devices:
    Sequence[str] = ..., use_deny_list: bool = ..., name: str | None = ..., register: bool = ..., require_accepted:
    bool = ..., accept_unproven: bool = ..., keep_model: bool = ..., timeout_seconds: float | None = ..., precision:
    Literal['fp32', 'fp16', 'bf16', 'fp8', 'int8'] = ..., profiles: Sequence[OptimizationProfile] | Mapping[str,
    Any] = ..., calibration_samples: int = ..., calibration_fit: Literal['refuse', 'partial'] = ..., keep:
    Sequence[str] = ..., qdq_op_types: Sequence[str] = ..., qdq_rules: Sequence[str] | None = ..., mark:
    Sequence[str] = ..., options: OnnxRuntimeOptions | TensorRTOptions | Mapping[str, Any] = ..., data: DataSource |
    None = ..., shapes: Mapping[str, Sequence[int]] = ..., input_dtypes: Mapping[str, str] = ..., iterations: int =
    ..., seed: int = ..., val_range: Mapping[str, tuple[float, float]] = ..., golden: str | None = ..., metric:
    DataSource | None = ..., labels: str | None = ..., loss: str | None = ..., power: bool = ..., self_check: bool |
    None = ..., policy_precisions: Mapping[Literal['fp32', 'fp16', 'bf16', 'fp8', 'int8'], Limits] | Mapping[str,
    Any] = ..., builds: int = ..., share: float | None = ..., tolerated: float = ..., latency: LatencyLimit | None |
    Mapping[str, Any] = ..., size: SizeLimit | None | Mapping[str, Any] = ..., accuracy: AccuracyLimit | None |
    Mapping[str, Any] = ..., precision_share: float | None = ..., interface: bool = ..., backend:
    Literal['onnxruntime', 'tensorrt'] = ...
) -> GateResult | MatrixResult: ...

def inspect_engines(
    config: InspectEnginesConfig | str = ..., *, tracker: Tracker | None = ..., experiment: str | None = ..., tags:
    Mapping[str, str] | None = ..., a: str = ..., b: str = ..., times_a: str | None = ..., times_b: str | None =
    ..., profile: bool = ..., shown: int = ...
) -> InspectEnginesResult: ...

def precision(
    model: str | PathLike[str] | Model | ModelProto | TorchObject, config: PrecisionConfig = ..., *, runner:
    Callable[[Candidate], BaseRunner] = ..., evaluate: Callable[[Candidate], bool] | None = ..., tracker: Tracker |
    None = ..., experiment: str | None = ..., tags: Mapping[str, str] | None = ..., parent: str | None = ..., file:
    str | PathLike[str] | None = ..., progress: Callable[[Step], None] | None = ..., data: DataSource | None = ...,
    shapes: Mapping[str, Sequence[int]] = ..., input_dtypes: Mapping[str, str] = ..., iterations: int = ..., seed:
    int = ..., val_range: Mapping[str, tuple[float, float]] = ..., to: Literal['fp16', 'bf16'] = ..., mode:
    Literal['minimal', 'bisect', 'linear'] = ..., direction: Literal['forward', 'reverse'] = ..., tolerances:
    Tolerances | None | Mapping[str, Any] = ..., profiles: Sequence[OptimizationProfile] | Mapping[str, Any] = ...,
    exclude: Sequence[str] = ..., max_checks: int | None = ..., output: str | None = ..., load_replay: str | None =
    ..., save_replay: str | None = ...
) -> PrecisionResult: ...

def promote(
    run_id: str, config: PromoteConfig | None = ..., *, tracker: Tracker | None = ..., tags: Mapping[str, str] |
    None = ..., model: str | None = ..., check: CheckConfig | None | Mapping[str, Any] = ..., name: str | None =
    ..., timeout_seconds: float | None = ..., devices: Sequence[str] = ..., allow_scripts: bool = ...
) -> PromoteResult: ...

def prove(
    campaign_run: str, config: ProveConfig | None = ..., *, tracker: Tracker | None = ..., tags: Mapping[str, str] |
    None = ..., evaluate: Callable[[Engine], bool | str | CheckOutcome] | None = ..., progress: Callable[[int, int |
    None], None] | None = ..., suspect: int | None = ..., repeats: int = ..., deny: bool = ..., devices:
    Sequence[str] = ..., allow_scripts: bool = ...
) -> ProveResult: ...

def reduce(
    model: str | PathLike[str] | Model | ModelProto | TorchObject, check: Callable[[SubModel], bool |
    Literal['pass', 'fail', 'error'] | CheckOutcome], config: ReduceConfig = ..., *, tracker: Tracker | None = ...,
    experiment: str | None = ..., tags: Mapping[str, str] | None = ..., parent: str | None = ..., file: str |
    PathLike[str] | None = ..., progress: Callable[[Step], None] | None = ..., data: DataSource | None = ...,
    shapes: Mapping[str, Sequence[int]] = ..., input_dtypes: Mapping[str, str] = ..., iterations: int = ..., seed:
    int = ..., val_range: Mapping[str, tuple[float, float]] = ..., mode: Literal['bisect', 'linear'] = ...,
    max_checks: int | None = ..., reduce_outputs: bool = ..., reduce_inputs: bool = ..., inputs: Literal['real',
    'declared'] = ..., output: str | None = ..., min_good: str | None = ..., load_replay: str | None = ...,
    save_replay: str | None = ..., external_data: str | None = ..., size_threshold: int = ..., one_file: bool = ...
) -> ReduceResult: ...

def sensitivity(
    model: str | PathLike[str] | Model | TorchObject, calibration_cache: str | CalibrationCache, config:
    SensitivityConfig = ..., *, tracker: Tracker | None = ..., experiment: str | None = ..., tags: Mapping[str, str]
    | None = ..., parent: str | None = ..., progress: Callable[[int, int | None], None] | None = ..., data:
    DataSource | None = ..., shapes: Mapping[str, Sequence[int]] = ..., input_dtypes: Mapping[str, str] = ...,
    iterations: int = ..., seed: int = ..., val_range: Mapping[str, tuple[float, float]] = ..., samples: int = ...,
    batch: int | None = ..., budget: float = ..., style: Literal['onnxruntime', 'tensorrt'] = ..., keep:
    Sequence[str] = ...
) -> SensitivityResult: ...

def triage(
    model: str | PathLike[str] | Model | TorchObject, config: TriageConfig = ..., *, tracker: Tracker | None = ...,
    experiment: str | None = ..., tags: Mapping[str, str] | None = ..., progress:
    Callable[[trtops.ops.triaging.result.Step], None] | None = ..., calibration_data: DataSource | None = ...,
    calibration_cache: str | None = ..., golden_model: str | None = ..., replay: str | None = ..., minutes: float |
    None = ..., campaign_builds: int = ..., output: str | None = ..., precision: Literal['fp32', 'fp16', 'bf16',
    'fp8', 'int8'] = ..., profiles: Sequence[OptimizationProfile] | Mapping[str, Any] = ..., calibration_samples:
    int = ..., calibration_fit: Literal['refuse', 'partial'] = ..., keep: Sequence[str] = ..., qdq_op_types:
    Sequence[str] = ..., qdq_rules: Sequence[str] | None = ..., mark: Sequence[str] = ..., options:
    OnnxRuntimeOptions | TensorRTOptions | Mapping[str, Any] = ..., data: DataSource | None = ..., shapes:
    Mapping[str, Sequence[int]] = ..., input_dtypes: Mapping[str, str] = ..., iterations: int = ..., seed: int =
    ..., val_range: Mapping[str, tuple[float, float]] = ..., golden: str | None = ..., tolerances: Tolerances | None
    | Mapping[str, Any] = ..., min_precision_share: float = ..., self_check: bool | None = ..., backend:
    Literal['onnxruntime', 'tensorrt'] = ...
) -> TriageResult: ...
