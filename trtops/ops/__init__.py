"""The ops: functions that take a frozen config and return a frozen result, for Python, the command line and flows.

Arguments that ops share: ``tracker`` is the tracking store; ``experiment`` is the experiment to log to, by default the
name of the model; ``tags`` are further tags of the run; ``parent`` is the id of a run that it belongs to; ``progress``
is called after each item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports

if TYPE_CHECKING:
    from trtops.backend.onnx.edit import unbounded_tensors as unbounded_tensors
    from trtops.ops.auditing.op import AuditConfig as AuditConfig
    from trtops.ops.auditing.op import audit as audit
    from trtops.ops.auditing.prune import prune_runs as prune_runs
    from trtops.ops.auditing.result import AuditResult as AuditResult
    from trtops.ops.bundling.op import BundleConfig as BundleConfig
    from trtops.ops.bundling.op import BundleResult as BundleResult
    from trtops.ops.bundling.op import bundle as bundle
    from trtops.ops.campaign.bisect import bisect as bisect
    from trtops.ops.campaign.bisect_result import BisectConfig as BisectConfig
    from trtops.ops.campaign.bisect_result import BisectResult as BisectResult
    from trtops.ops.campaign.config import DebugBuildConfig as DebugBuildConfig
    from trtops.ops.campaign.debug_build import DebugBuildResult as DebugBuildResult
    from trtops.ops.campaign.debug_build import debug_build as debug_build
    from trtops.ops.campaign.diff_tactics import DiffTacticsConfig as DiffTacticsConfig
    from trtops.ops.campaign.diff_tactics import DiffTacticsResult as DiffTacticsResult
    from trtops.ops.campaign.diff_tactics import diff_tactics as diff_tactics
    from trtops.ops.campaign.promote import PromoteConfig as PromoteConfig
    from trtops.ops.campaign.promote import PromoteResult as PromoteResult
    from trtops.ops.campaign.promote import promote as promote
    from trtops.ops.campaign.promote import resolve as resolve
    from trtops.ops.campaign.prove import ProveConfig as ProveConfig
    from trtops.ops.campaign.prove import ProveResult as ProveResult
    from trtops.ops.campaign.prove import prove as prove
    from trtops.ops.campaign.workers import close_workers as close_workers
    from trtops.ops.engines.build_list import BuildListConfig as BuildListConfig
    from trtops.ops.engines.build_list import BuildListResult as BuildListResult
    from trtops.ops.engines.build_list import build_list as build_list
    from trtops.ops.engines.calibrate import CalibrateConfig as CalibrateConfig
    from trtops.ops.engines.calibrate import CalibrateResult as CalibrateResult
    from trtops.ops.engines.calibrate import calibrate as calibrate
    from trtops.ops.engines.convert import ConvertConfig as ConvertConfig
    from trtops.ops.engines.convert import ConvertResult as ConvertResult
    from trtops.ops.engines.convert import builds_table as builds_table
    from trtops.ops.engines.convert import convert as convert
    from trtops.ops.engines.deny import deny as deny
    from trtops.ops.engines.deny import pardon as pardon
    from trtops.ops.engines.model_list import ListedModel as ListedModel
    from trtops.ops.engines.model_list import ModelList as ModelList
    from trtops.ops.engines.model_list import folder_list as folder_list
    from trtops.ops.engines.model_list import read_model_list as read_model_list
    from trtops.ops.engines.sensitivity import SensitivityConfig as SensitivityConfig
    from trtops.ops.engines.sensitivity import SensitivityResult as SensitivityResult
    from trtops.ops.engines.sensitivity import sensitivity as sensitivity
    from trtops.ops.evaluation.check import CheckConfig as CheckConfig
    from trtops.ops.evaluation.command import CommandCheck as CommandCheck
    from trtops.ops.evaluation.compare import CompareResult as CompareResult
    from trtops.ops.evaluation.compare import compare as compare
    from trtops.ops.evaluation.data import DataConfig as DataConfig
    from trtops.ops.evaluation.limits import default_tolerances as default_tolerances
    from trtops.ops.evaluation.limits import tolerances_for as tolerances_for
    from trtops.ops.evaluation.run import RunConfig as RunConfig
    from trtops.ops.evaluation.run import RunResult as RunResult
    from trtops.ops.evaluation.run import run_models as run_models
    from trtops.ops.evaluation.saved_data import concat as concat
    from trtops.ops.evaluation.saved_data import merge as merge
    from trtops.ops.evaluation.submodel import ComparisonCheck as ComparisonCheck
    from trtops.ops.evaluation.submodel import EngineRunner as EngineRunner
    from trtops.ops.gate.matrix import MatrixResult as MatrixResult
    from trtops.ops.gate.matrix import gate_all as gate_all
    from trtops.ops.gate.op import GateConfig as GateConfig
    from trtops.ops.gate.policy import Policy as Policy
    from trtops.ops.gate.policy import read_policy as read_policy
    from trtops.ops.gate.releases import Release as Release
    from trtops.ops.gate.result import GateResult as GateResult
    from trtops.ops.model.capability import capability as capability
    from trtops.ops.model.graph import model_page as model_page
    from trtops.ops.model.graph import serve_page as serve_page
    from trtops.ops.model.inspect.data import inspect_data as inspect_data
    from trtops.ops.model.inspect.data import tensors_text as tensors_text
    from trtops.ops.model.inspect.engines import InspectEnginesConfig as InspectEnginesConfig
    from trtops.ops.model.inspect.engines import InspectEnginesResult as InspectEnginesResult
    from trtops.ops.model.inspect.engines import inspect_engines as inspect_engines
    from trtops.ops.model.inspect.models import inspect_model as inspect_model
    from trtops.ops.model.inspect.records import inspect_calibration as inspect_calibration
    from trtops.ops.model.inspect.records import inspect_sparsity as inspect_sparsity
    from trtops.ops.model.inspect.records import inspect_tactics as inspect_tactics
    from trtops.ops.model.lint import lint as lint
    from trtops.ops.model.model_files import SaveConfig as SaveConfig
    from trtops.ops.model.model_files import open_model as open_model
    from trtops.ops.model.observed_shapes import with_observed_shapes as with_observed_shapes
    from trtops.ops.model.plugins import match_plugins as match_plugins
    from trtops.ops.model.plugins import read_matches as read_matches
    from trtops.ops.model.plugins import replace_plugins as replace_plugins
    from trtops.ops.model.plugins import write_matches as write_matches
    from trtops.ops.model.surgeon import SurgeonResult as SurgeonResult
    from trtops.ops.model.surgeon import extract as extract
    from trtops.ops.model.surgeon import insert as insert
    from trtops.ops.model.surgeon import prune as prune
    from trtops.ops.model.surgeon import reconstruct_weights as reconstruct_weights
    from trtops.ops.model.surgeon import remove_nodes as remove_nodes
    from trtops.ops.model.surgeon import sanitize as sanitize
    from trtops.ops.model.surgeon import strip_weights as strip_weights
    from trtops.ops.result import OpResult as OpResult
    from trtops.ops.search.accuracy import AccuracyConfig as AccuracyConfig
    from trtops.ops.search.accuracy import AccuracyResult as AccuracyResult
    from trtops.ops.search.accuracy import Emulated as Emulated
    from trtops.ops.search.accuracy import accuracy as accuracy
    from trtops.ops.search.precision import ModelWriter as ModelWriter
    from trtops.ops.search.precision import PrecisionConfig as PrecisionConfig
    from trtops.ops.search.precision import PrecisionResult as PrecisionResult
    from trtops.ops.search.precision import checking_candidates as checking_candidates
    from trtops.ops.search.precision import precision as precision
    from trtops.ops.search.precision_engines import EngineWriter as EngineWriter
    from trtops.ops.search.precision_engines import require_layer_precisions as require_layer_precisions
    from trtops.ops.search.reduce import ReduceConfig as ReduceConfig
    from trtops.ops.search.reduce import ReduceResult as ReduceResult
    from trtops.ops.search.reduce import engine_check as engine_check
    from trtops.ops.search.reduce import reduce as reduce
    from trtops.ops.search.repeat import RepeatConfig as RepeatConfig
    from trtops.ops.search.repeat import RepeatResult as RepeatResult
    from trtops.ops.search.repeat import repeat as repeat
    from trtops.ops.search.repeat import sort_artifacts as sort_artifacts
    from trtops.ops.stored_runs import Report as Report
    from trtops.ops.stored_runs import inspect_run as inspect_run
    from trtops.ops.stored_runs import list_runs as list_runs
    from trtops.ops.stored_runs import reevaluate as reevaluate
    from trtops.ops.stored_runs import report as report
    from trtops.ops.stored_runs import side_by_side as side_by_side
    from trtops.ops.triaging.op import triage as triage
    from trtops.ops.triaging.result import TriageConfig as TriageConfig
    from trtops.ops.triaging.result import TriageResult as TriageResult
    from trtops.tracking.builds import load_cache as load_cache

# Names are imported on first use, so that each op loads only its own dependencies.
__getattr__, __dir__ = exports(__name__)
