# Written by `python -m docs.flow_stub`.
# ruff: noqa
# fmt: off
from collections.abc import Mapping
from collections.abc import Sequence
from os import PathLike
from trtops.comparator.report import Tolerances
from trtops.ops.auditing.op import AuditConfig
from trtops.ops.auditing.prune import PruneResult
from trtops.ops.auditing.result import AuditResult
from trtops.ops.bundling.op import BundleConfig
from trtops.ops.bundling.op import BundleResult
from trtops.ops.campaign.bisect_result import BisectConfig
from trtops.ops.campaign.bisect_result import BisectResult
from trtops.ops.campaign.bisect_result import Unit
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import DebugBuildResult
from trtops.ops.campaign.diff_tactics import DiffTacticsConfig
from trtops.ops.campaign.diff_tactics import DiffTacticsResult
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
from trtops.ops.engines.sensitivity import SensitivityConfig
from trtops.ops.engines.sensitivity import SensitivityResult
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.gate.matrix import MatrixResult
from trtops.ops.gate.policy import AccuracyLimit
from trtops.ops.gate.policy import GateConfig
from trtops.ops.gate.policy import LatencyLimit
from trtops.ops.gate.policy import Limits
from trtops.ops.gate.policy import SizeLimit
from trtops.ops.gate.result import GateResult
from trtops.ops.registry.promote import PromoteConfig
from trtops.ops.registry.promote import PromoteResult
from trtops.ops.search.accuracy import AccuracyConfig
from trtops.ops.search.accuracy import AccuracyResult
from trtops.ops.search.choose import ChooseConfig
from trtops.ops.search.choose import ChooseListResult
from trtops.ops.search.choose import ChooseResult
from trtops.ops.search.command import CommandCheck
from trtops.ops.search.precision import PrecisionConfig
from trtops.ops.search.precision import PrecisionResult
from trtops.ops.search.reduce import ReduceConfig
from trtops.ops.search.reduce import ReduceResult
from trtops.ops.triaging.result import TriageConfig
from trtops.ops.triaging.result import TriageResult
from trtops.spec import OnnxRuntimeOptions
from trtops.spec import OptimizationProfile
from trtops.spec import TensorRTOptions
from typing import Literal
from trtops.flows.flow_of import OpFlow

class AccuracyFlow(OpFlow[..., AccuracyResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, model: str | PathLike[str], config: AccuracyConfig | None = ..., *, side: Literal['onnxruntime',
        'tensorrt', 'emulated'] = ..., precision: Literal['fp32', 'fp16', 'bf16', 'fp8', 'int8'] = ..., experiment: str
        | None = ..., data: str | None = ..., shapes: Mapping[str, Sequence[int]] | None = ..., input_dtypes:
        Mapping[str, str] | None = ..., iterations: int | None = ..., seed: int | None = ..., val_range: Mapping[str,
        tuple[float, float]] | None = ..., tolerances: Tolerances | None = ...
    ) -> AccuracyResult: ...

accuracy: AccuracyFlow

class AuditFlow(OpFlow[..., AuditResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, config: AuditConfig | None = ..., *, backend: Literal['onnxruntime', 'tensorrt'] = ..., runs:
        Sequence[str] | None = ..., experiment: str | None = ..., tags: Sequence[tuple[str, str]] | None = ...,
        accepted: bool | None = ..., sample: int | None = ..., seed: int | None = ..., rebuild: bool | None = ..., ways:
        Sequence[Literal['replay', 'timing cache', 'plain']] | None = ..., at_least: Literal['bytes', 'tactics',
        'outputs', 'tolerance'] | None = ..., materials: str | None = ..., keys: Sequence[str] | None = ...,
        certificates: Sequence[str] | None = ..., log: Sequence[str] | None = ..., timeout_seconds: float | None = ...
    ) -> AuditResult: ...

audit: AuditFlow

class BisectFlow(OpFlow[..., BisectResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, run: str, bad: str | None = ..., config: BisectConfig | None = ..., *, held_units: Sequence[Unit] = ...,
        confidence: float | None = ..., max_builds: int | None = ..., max_minutes: float | None = ..., seed: int | None
        = ..., devices: Sequence[str] | None = ..., allow_scripts: bool | None = ...
    ) -> BisectResult: ...

bisect: BisectFlow

class BundleFlow(OpFlow[..., BundleResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, run: str, config: BundleConfig | None = ..., *, output: str | None = ..., materials: str | None = ...,
        allow_scripts: bool | None = ..., timeout_seconds: float | None = ...
    ) -> BundleResult: ...

bundle: BundleFlow

class CalibrateFlow(OpFlow[..., CalibrateResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, model: str | PathLike[str], config: CalibrateConfig | None = ..., *, experiment: str | None = ...,
        backend: Literal['onnxruntime', 'tensorrt'] | None = ..., calibration_data: str | None = ..., algorithm:
        Literal['best', 'minmax', 'entropy', 'percentile'] | None = ..., percentile: float | None = ..., batch: int |
        None = ..., samples: int | None = ..., min_samples: int | None = ..., output: str | None = ..., profiles:
        Sequence[OptimizationProfile] | None = ..., calibration_samples: int | None = ..., calibration_fit:
        Literal['refuse', 'partial'] | None = ..., keep: Sequence[str] | None = ..., qdq_op_types: Sequence[str] | None
        = ..., qdq_rules: Sequence[str] | None = ..., mark: Sequence[str] | None = ..., options: OnnxRuntimeOptions |
        TensorRTOptions | None = ..., data: str | None = ..., shapes: Mapping[str, Sequence[int]] | None = ...,
        input_dtypes: Mapping[str, str] | None = ..., iterations: int | None = ..., seed: int | None = ..., val_range:
        Mapping[str, tuple[float, float]] | None = ..., golden: str | None = ..., metric: Sequence[str] | None = ...,
        labels: str | None = ..., loss: str | None = ..., tolerances: Tolerances | None = ..., warm_up: int | None =
        ..., latency_runs: int | None = ..., plots: Literal['always', 'bad', 'never'] | None = ..., min_precision_share:
        float | None = ..., power: bool | None = ..., self_check: bool | None = ...
    ) -> CalibrateResult: ...

calibrate: CalibrateFlow

class ChooseFlow(OpFlow[..., ChooseResult | ChooseListResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, models: Sequence[str | PathLike[str]], config: ChooseConfig | None = ..., *, experiment: str | None = ...,
        calibration_data: str | None = ..., calibration_cache: str | None = ..., loss: str | None = ..., latency: str |
        None = ..., minutes: float | None = ..., on: Sequence[Literal['cpu', 'cuda', 'tensorrt']] | None = ...,
        precisions: Sequence[Literal['fp32', 'fp16', 'bf16', 'fp8', 'int8']] | None = ..., resume: str | None = ...,
        profiles: Sequence[OptimizationProfile] | None = ..., calibration_samples: int | None = ..., calibration_fit:
        Literal['refuse', 'partial'] | None = ..., keep: Sequence[str] | None = ..., qdq_op_types: Sequence[str] | None
        = ..., qdq_rules: Sequence[str] | None = ..., data: str | None = ..., shapes: Mapping[str, Sequence[int]] | None
        = ..., input_dtypes: Mapping[str, str] | None = ..., iterations: int | None = ..., seed: int | None = ...,
        val_range: Mapping[str, tuple[float, float]] | None = ..., golden: str | None = ..., metric: Sequence[str] |
        None = ..., labels: str | None = ..., tolerances: Tolerances | None = ..., warm_up: int | None = ...,
        latency_runs: int | None = ...
    ) -> ChooseResult | ChooseListResult: ...

choose: ChooseFlow

class CompareFlow(OpFlow[..., CompareResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, actual: str, golden: str, config: CompareConfig | None = ..., *, experiment: str | None = ..., data: str |
        None = ..., shapes: Mapping[str, Sequence[int]] | None = ..., input_dtypes: Mapping[str, str] | None = ...,
        iterations: int | None = ..., seed: int | None = ..., val_range: Mapping[str, tuple[float, float]] | None = ...,
        metric: Sequence[str] | None = ..., labels: str | None = ..., loss: str | None = ..., tolerances: Tolerances |
        None = ..., warm_up: int | None = ..., latency_runs: int | None = ..., power: bool | None = ..., self_check:
        bool | None = ...
    ) -> CompareResult: ...

compare: CompareFlow

class ConvertFlow(OpFlow[..., ConvertResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, model: str | PathLike[str], config: ConvertConfig | None = ..., *, experiment: str | None = ..., backend:
        Literal['onnxruntime', 'tensorrt'] | None = ..., calibration_data: str | None = ..., calibration_cache: str |
        None = ..., timing_cache: str | None = ..., replay: str | None = ..., carry_over: bool | None = ...,
        measure_ranges: bool | None = ..., use_deny_list: bool | None = ..., rebuild: bool | None = ..., keep_model:
        bool | None = ..., isolated: bool | None = ..., timeout_seconds: float | None = ..., max_engine_bytes: int |
        None = ..., precision: Literal['fp32', 'fp16', 'bf16', 'fp8', 'int8'] | None = ..., profiles:
        Sequence[OptimizationProfile] | None = ..., calibration_samples: int | None = ..., calibration_fit:
        Literal['refuse', 'partial'] | None = ..., keep: Sequence[str] | None = ..., qdq_op_types: Sequence[str] | None
        = ..., qdq_rules: Sequence[str] | None = ..., mark: Sequence[str] | None = ..., options: OnnxRuntimeOptions |
        TensorRTOptions | None = ..., data: str | None = ..., shapes: Mapping[str, Sequence[int]] | None = ...,
        input_dtypes: Mapping[str, str] | None = ..., iterations: int | None = ..., seed: int | None = ..., val_range:
        Mapping[str, tuple[float, float]] | None = ..., golden: str | None = ..., metric: Sequence[str] | None = ...,
        labels: str | None = ..., loss: str | None = ..., tolerances: Tolerances | None = ..., warm_up: int | None =
        ..., latency_runs: int | None = ..., plots: Literal['always', 'bad', 'never'] | None = ..., min_precision_share:
        float | None = ..., power: bool | None = ..., self_check: bool | None = ...
    ) -> ConvertResult: ...

convert: ConvertFlow

class DebugBuildFlow(OpFlow[..., DebugBuildResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, model: str | PathLike[str] | None = ..., config: DebugBuildConfig | None = ..., *, resume: str | None =
        ..., dask: str | None = ..., allow_scripts: bool = ..., experiment: str | None = ..., backend:
        Literal['onnxruntime', 'tensorrt'] | None = ..., command: CommandCheck | None = ..., calibration_data: str |
        None = ..., calibration_cache: str | None = ..., random_tactics: bool | None = ..., until: int | Literal['good',
        'bad', 'decided'] | None = ..., max_iterations: int | None = ..., max_minutes: float | None = ..., bisect: bool
        | None = ..., complete: bool | None = ..., clean_builds: int | None = ..., confidence: float | None = ...,
        timeout_seconds: float | None = ..., parallel: int | None = ..., devices: Sequence[str] | None = ..., seed: int
        | None = ..., use_deny_list: bool | None = ..., keep_model: bool | None = ..., precision: Literal['fp32',
        'fp16', 'bf16', 'fp8', 'int8'] | None = ..., profiles: Sequence[OptimizationProfile] | None = ...,
        calibration_samples: int | None = ..., calibration_fit: Literal['refuse', 'partial'] | None = ..., keep:
        Sequence[str] | None = ..., qdq_op_types: Sequence[str] | None = ..., qdq_rules: Sequence[str] | None = ...,
        mark: Sequence[str] | None = ..., options: OnnxRuntimeOptions | TensorRTOptions | None = ..., data: str | None =
        ..., shapes: Mapping[str, Sequence[int]] | None = ..., input_dtypes: Mapping[str, str] | None = ..., iterations:
        int | None = ..., check_seed: int | None = ..., val_range: Mapping[str, tuple[float, float]] | None = ...,
        golden: str | None = ..., metric: Sequence[str] | None = ..., labels: str | None = ..., loss: str | None = ...,
        tolerances: Tolerances | None = ..., warm_up: int | None = ..., latency_runs: int | None = ..., plots:
        Literal['always', 'bad', 'never'] | None = ..., min_precision_share: float | None = ..., power: bool | None =
        ..., self_check: bool | None = ...
    ) -> DebugBuildResult: ...

debug_build: DebugBuildFlow

class DiffTacticsFlow(OpFlow[..., DiffTacticsResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, config: DiffTacticsConfig | None = ..., *, runs: Sequence[str] | None = ..., experiment: str | None = ...,
        tags: Mapping[str, str] | None = ..., folder: str | None = ..., good: str | None = ..., bad: str | None = ...,
        by: Literal['tactic', 'format', 'precision', 'algorithm'] | None = ..., confidence: float | None = ...
    ) -> DiffTacticsResult: ...

diff_tactics: DiffTacticsFlow

class EvaluateFlow(OpFlow[..., EvaluateResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, engine: str, model: str | PathLike[str], config: EvaluateConfig | None = ..., *, experiment: str | None =
        ..., precision: Literal['fp32', 'fp16', 'bf16', 'fp8', 'int8'] | None = ..., providers: Sequence[str] | None =
        ..., keep_model: bool | None = ..., timeout_seconds: float | None = ..., data: str | None = ..., shapes:
        Mapping[str, Sequence[int]] | None = ..., input_dtypes: Mapping[str, str] | None = ..., iterations: int | None =
        ..., seed: int | None = ..., val_range: Mapping[str, tuple[float, float]] | None = ..., golden: str | None =
        ..., metric: Sequence[str] | None = ..., labels: str | None = ..., loss: str | None = ..., tolerances:
        Tolerances | None = ..., warm_up: int | None = ..., latency_runs: int | None = ..., plots: Literal['always',
        'bad', 'never'] | None = ..., min_precision_share: float | None = ..., power: bool | None = ..., self_check:
        bool | None = ...
    ) -> EvaluateResult: ...

evaluate: EvaluateFlow

class GateFlow(OpFlow[..., GateResult | MatrixResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, models: Sequence[str | PathLike[str]] = ..., config: GateConfig | None = ..., *, policy: str |
        PathLike[str] | None = ..., releases: Sequence[str] = ..., precisions: Sequence[Literal['fp32', 'fp16', 'bf16',
        'fp8', 'int8']] = ..., kernel: str = ..., approval: bool = ..., experiment: str | None = ..., backend:
        Literal['onnxruntime', 'tensorrt'] | None = ..., calibration_data: str | None = ..., calibration_cache: str |
        None = ..., candidate: str | None = ..., accepted: str | None = ..., minutes: float | None = ..., clock:
        Literal['wall', 'cpu-time', 'instructions'] | Literal['auto'] | None = ..., release: str | None = ..., others:
        Sequence[str] | None = ..., devices: Sequence[str] | None = ..., use_deny_list: bool | None = ..., name: str |
        None = ..., require_accepted: bool | None = ..., accept_unproven: bool | None = ..., keep_model: bool | None =
        ..., timeout_seconds: float | None = ..., precision: Literal['fp32', 'fp16', 'bf16', 'fp8', 'int8'] | None =
        ..., profiles: Sequence[OptimizationProfile] | None = ..., calibration_samples: int | None = ...,
        calibration_fit: Literal['refuse', 'partial'] | None = ..., keep: Sequence[str] | None = ..., qdq_op_types:
        Sequence[str] | None = ..., qdq_rules: Sequence[str] | None = ..., mark: Sequence[str] | None = ..., options:
        OnnxRuntimeOptions | TensorRTOptions | None = ..., data: str | None = ..., shapes: Mapping[str, Sequence[int]] |
        None = ..., input_dtypes: Mapping[str, str] | None = ..., iterations: int | None = ..., seed: int | None = ...,
        val_range: Mapping[str, tuple[float, float]] | None = ..., golden: str | None = ..., metric: Sequence[str] |
        None = ..., labels: str | None = ..., loss: str | None = ..., power: bool | None = ..., self_check: bool | None
        = ..., policy_precisions: Mapping[Literal['fp32', 'fp16', 'bf16', 'fp8', 'int8'], Limits] | None = ..., builds:
        int | None = ..., share: float | None = ..., tolerated: float | None = ..., latency: LatencyLimit | None = ...,
        size: SizeLimit | None = ..., accuracy: AccuracyLimit | None = ..., precision_share: float | None = ...,
        interface: bool | None = ...
    ) -> GateResult | MatrixResult: ...

gate: GateFlow

class NightlyFlow(OpFlow[..., BuildListResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, models: str | PathLike[str], config: BuildListConfig | None = ..., *, experiment: str | None = ...,
        backends: Sequence[Literal['onnxruntime', 'tensorrt']] | None = ..., only_new: bool | None = ..., attempts: int
        | None = ..., settle_seconds: float | None = ...
    ) -> BuildListResult: ...

nightly: NightlyFlow

class PrecisionFlow(OpFlow[..., PrecisionResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, model: str | PathLike[str], config: PrecisionConfig | None = ..., *, side: Literal['emulated', 'tensorrt']
        = ..., experiment: str | None = ..., data: str | None = ..., shapes: Mapping[str, Sequence[int]] | None = ...,
        input_dtypes: Mapping[str, str] | None = ..., iterations: int | None = ..., seed: int | None = ..., val_range:
        Mapping[str, tuple[float, float]] | None = ..., to: Literal['fp16', 'bf16'] | None = ..., mode:
        Literal['minimal', 'bisect', 'linear'] | None = ..., direction: Literal['forward', 'reverse'] | None = ...,
        tolerances: Tolerances | None = ..., profiles: Sequence[OptimizationProfile] | None = ..., exclude:
        Sequence[str] | None = ..., max_checks: int | None = ..., output: str | None = ..., load_replay: str | None =
        ..., save_replay: str | None = ...
    ) -> PrecisionResult: ...

precision: PrecisionFlow

class PromoteFlow(OpFlow[..., PromoteResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, run_id: str, config: PromoteConfig | None = ..., *, model: str | None = ..., check: CheckConfig | None =
        ..., name: str | None = ..., timeout_seconds: float | None = ..., devices: Sequence[str] | None = ...,
        allow_scripts: bool | None = ...
    ) -> PromoteResult: ...

promote: PromoteFlow

class ProveFlow(OpFlow[..., ProveResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, campaign_run: str, config: ProveConfig | None = ..., *, suspect: int | None = ..., repeats: int | None =
        ..., deny: bool | None = ..., devices: Sequence[str] | None = ..., allow_scripts: bool | None = ...
    ) -> ProveResult: ...

prove: ProveFlow

class PruneRunsFlow(OpFlow[..., PruneResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, *, older_than_days: float = ..., apply: bool = ...
    ) -> PruneResult: ...

prune_runs: PruneRunsFlow

class ReapFlow(OpFlow[..., Sequence[str]]):
    def __call__(  # type: ignore[override, unused-ignore]
        self
    ) -> Sequence[str]: ...

reap: ReapFlow

class ReduceFlow(OpFlow[..., ReduceResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, model: str | PathLike[str], config: ReduceConfig | None = ..., *, command: CommandCheck | None = ...,
        backend: Literal['onnxruntime', 'tensorrt'] = ..., precision: Literal['fp32', 'fp16', 'bf16', 'fp8', 'int8'] =
        ..., tolerances: Tolerances | None = ..., experiment: str | None = ..., data: str | None = ..., shapes:
        Mapping[str, Sequence[int]] | None = ..., input_dtypes: Mapping[str, str] | None = ..., iterations: int | None =
        ..., seed: int | None = ..., val_range: Mapping[str, tuple[float, float]] | None = ..., mode: Literal['bisect',
        'linear'] | None = ..., max_checks: int | None = ..., reduce_outputs: bool | None = ..., reduce_inputs: bool |
        None = ..., inputs: Literal['real', 'declared'] | None = ..., output: str | None = ..., min_good: str | None =
        ..., load_replay: str | None = ..., save_replay: str | None = ..., external_data: str | None = ...,
        size_threshold: int | None = ..., one_file: bool | None = ...
    ) -> ReduceResult: ...

reduce: ReduceFlow

class SensitivityFlow(OpFlow[..., SensitivityResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, model: str | PathLike[str], calibration_cache: str, config: SensitivityConfig | None = ..., *, experiment:
        str | None = ..., data: str | None = ..., shapes: Mapping[str, Sequence[int]] | None = ..., input_dtypes:
        Mapping[str, str] | None = ..., iterations: int | None = ..., seed: int | None = ..., val_range: Mapping[str,
        tuple[float, float]] | None = ..., samples: int | None = ..., batch: int | None = ..., budget: float | None =
        ..., style: Literal['onnxruntime', 'tensorrt'] | None = ..., keep: Sequence[str] | None = ...
    ) -> SensitivityResult: ...

sensitivity: SensitivityFlow

class TriageFlow(OpFlow[..., TriageResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, model: str | PathLike[str], config: TriageConfig | None = ..., *, experiment: str | None = ..., backend:
        Literal['onnxruntime', 'tensorrt'] | None = ..., calibration_data: str | None = ..., calibration_cache: str |
        None = ..., golden_model: str | None = ..., replay: str | None = ..., minutes: float | None = ...,
        campaign_builds: int | None = ..., output: str | None = ..., precision: Literal['fp32', 'fp16', 'bf16', 'fp8',
        'int8'] | None = ..., profiles: Sequence[OptimizationProfile] | None = ..., calibration_samples: int | None =
        ..., calibration_fit: Literal['refuse', 'partial'] | None = ..., keep: Sequence[str] | None = ..., qdq_op_types:
        Sequence[str] | None = ..., qdq_rules: Sequence[str] | None = ..., mark: Sequence[str] | None = ..., options:
        OnnxRuntimeOptions | TensorRTOptions | None = ..., data: str | None = ..., shapes: Mapping[str, Sequence[int]] |
        None = ..., input_dtypes: Mapping[str, str] | None = ..., iterations: int | None = ..., seed: int | None = ...,
        val_range: Mapping[str, tuple[float, float]] | None = ..., golden: str | None = ..., tolerances: Tolerances |
        None = ..., min_precision_share: float | None = ..., self_check: bool | None = ...
    ) -> TriageResult: ...

triage: TriageFlow

class WatchFlow(OpFlow[..., BuildListResult]):
    def __call__(  # type: ignore[override, unused-ignore]
        self, folder: str | PathLike[str], *, pattern: str = ..., precisions: Sequence[Literal['fp32', 'fp16', 'bf16',
        'fp8', 'int8']] = ..., backends: Sequence[Literal['onnxruntime', 'tensorrt']] = ..., data: str | None = ...,
        shapes: Mapping[str, Sequence[int]] | None = ..., settle_seconds: float = ..., experiment: str | None = ...
    ) -> BuildListResult: ...

watch: WatchFlow
