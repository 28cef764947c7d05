"""The verbs: one frozen config in, one frozen result out, called alike from Python, the command line and flows.

Names are imported on first use, so that whoever needs one op loads what that op needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports

if TYPE_CHECKING:
    from trtops.backend.onnx.edit import unbounded_tensors as unbounded_tensors
    from trtops.ops.campaign.benches import close_benches as close_benches
    from trtops.ops.campaign.bisect import BisectConfig as BisectConfig
    from trtops.ops.campaign.bisect import BisectResult as BisectResult
    from trtops.ops.campaign.bisect import bisect as bisect
    from trtops.ops.campaign.config import DebugBuildConfig as DebugBuildConfig
    from trtops.ops.campaign.config import Vary as Vary
    from trtops.ops.campaign.debug_build import DebugBuildResult as DebugBuildResult
    from trtops.ops.campaign.debug_build import debug_build as debug_build
    from trtops.ops.campaign.diff_tactics import DiffTacticsConfig as DiffTacticsConfig
    from trtops.ops.campaign.diff_tactics import DiffTacticsResult as DiffTacticsResult
    from trtops.ops.campaign.diff_tactics import diff_tactics as diff_tactics
    from trtops.ops.campaign.noise import NoiseConfig as NoiseConfig
    from trtops.ops.campaign.noise import NoiseResult as NoiseResult
    from trtops.ops.campaign.noise import noise as noise
    from trtops.ops.campaign.promote import PromoteConfig as PromoteConfig
    from trtops.ops.campaign.promote import PromoteResult as PromoteResult
    from trtops.ops.campaign.promote import promote as promote
    from trtops.ops.campaign.promote import resolve as resolve
    from trtops.ops.campaign.prove import ProveConfig as ProveConfig
    from trtops.ops.campaign.prove import ProveResult as ProveResult
    from trtops.ops.campaign.prove import prove as prove
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
    from trtops.ops.judging.command import CommandCheck as CommandCheck
    from trtops.ops.judging.compare import CompareConfig as CompareConfig
    from trtops.ops.judging.compare import CompareResult as CompareResult
    from trtops.ops.judging.compare import compare as compare
    from trtops.ops.judging.feeds import DataConfig as DataConfig
    from trtops.ops.judging.judgement import CheckConfig as CheckConfig
    from trtops.ops.judging.judgement import default_tolerances as default_tolerances
    from trtops.ops.judging.judgement import tolerances_for as tolerances_for
    from trtops.ops.judging.run import RunConfig as RunConfig
    from trtops.ops.judging.run import RunResult as RunResult
    from trtops.ops.judging.run import run_models as run_models
    from trtops.ops.judging.saved_data import concat as concat
    from trtops.ops.judging.saved_data import merge as merge
    from trtops.ops.judging.submodel import ComparisonCheck as ComparisonCheck
    from trtops.ops.judging.submodel import EngineRunner as EngineRunner
    from trtops.ops.model.capability import CapabilityConfig as CapabilityConfig
    from trtops.ops.model.capability import capability as capability
    from trtops.ops.model.graph import describe_onnx as describe_onnx
    from trtops.ops.model.graph import model_page as model_page
    from trtops.ops.model.graph import serve_page as serve_page
    from trtops.ops.model.inspect.calibration import compare_calibrations as compare_calibrations
    from trtops.ops.model.inspect.calibration import inspect_calibration as inspect_calibration
    from trtops.ops.model.inspect.data import inspect_data as inspect_data
    from trtops.ops.model.inspect.engine_tensors import read_tensors as read_tensors
    from trtops.ops.model.inspect.engine_tensors import tensors_text as tensors_text
    from trtops.ops.model.inspect.models import inspect_model as inspect_model
    from trtops.ops.model.inspect.sparsity import inspect_sparsity as inspect_sparsity
    from trtops.ops.model.inspect.tactics import inspect_tactics as inspect_tactics
    from trtops.ops.model.lint import LintConfig as LintConfig
    from trtops.ops.model.lint import LintResult as LintResult
    from trtops.ops.model.lint import lint as lint
    from trtops.ops.model.observed_shapes import with_observed_shapes as with_observed_shapes
    from trtops.ops.model.opening import open_model as open_model
    from trtops.ops.model.plugins import match_plugins as match_plugins
    from trtops.ops.model.plugins import read_matches as read_matches
    from trtops.ops.model.plugins import replace_plugins as replace_plugins
    from trtops.ops.model.plugins import write_matches as write_matches
    from trtops.ops.model.saving import SaveConfig as SaveConfig
    from trtops.ops.model.surgeon.cutting import InsertConfig as InsertConfig
    from trtops.ops.model.surgeon.cutting import extract as extract
    from trtops.ops.model.surgeon.cutting import insert as insert
    from trtops.ops.model.surgeon.cutting import remove_nodes as remove_nodes
    from trtops.ops.model.surgeon.operation import SurgeonResult as SurgeonResult
    from trtops.ops.model.surgeon.sanitize import SanitizeConfig as SanitizeConfig
    from trtops.ops.model.surgeon.sanitize import sanitize as sanitize
    from trtops.ops.model.surgeon.weights import LowerConfig as LowerConfig
    from trtops.ops.model.surgeon.weights import lower_precision as lower_precision
    from trtops.ops.model.surgeon.weights import prune as prune
    from trtops.ops.model.surgeon.weights import reconstruct_weights as reconstruct_weights
    from trtops.ops.model.surgeon.weights import resave as resave
    from trtops.ops.model.surgeon.weights import strip_weights as strip_weights
    from trtops.ops.model.template import template as template
    from trtops.ops.result import OpResult as OpResult
    from trtops.ops.runs.inspect import inspect_run as inspect_run
    from trtops.ops.runs.stored import audit as audit
    from trtops.ops.runs.stored import judge_again as judge_again
    from trtops.ops.runs.stored import list_runs as list_runs
    from trtops.ops.runs.stored import side_by_side as side_by_side
    from trtops.ops.search.precision.check import CandidateCheck as CandidateCheck
    from trtops.ops.search.precision.check import ModelWriter as ModelWriter
    from trtops.ops.search.precision.config import PrecisionConfig as PrecisionConfig
    from trtops.ops.search.precision.engines import EngineWriter as EngineWriter
    from trtops.ops.search.precision.engines import require_layer_precisions as require_layer_precisions
    from trtops.ops.search.precision.op import precision as precision
    from trtops.ops.search.precision.result import PrecisionResult as PrecisionResult
    from trtops.ops.search.reduce.checks import engine_check as engine_check
    from trtops.ops.search.reduce.config import ReduceConfig as ReduceConfig
    from trtops.ops.search.reduce.op import reduce as reduce
    from trtops.ops.search.reduce.result import ReduceResult as ReduceResult
    from trtops.ops.search.repeat import RepeatConfig as RepeatConfig
    from trtops.ops.search.repeat import RepeatResult as RepeatResult
    from trtops.ops.search.repeat import repeat as repeat
    from trtops.ops.search.repeat import sort_artifacts as sort_artifacts
    from trtops.ops.search.triage.config import TriageConfig as TriageConfig
    from trtops.ops.search.triage.op import triage as triage
    from trtops.ops.search.triage.result import TriageResult as TriageResult
    from trtops.ops.search.triage.sides import Emulated as Emulated
    from trtops.tracking.calibrations import load_cache as load_cache

__getattr__, __dir__ = exports(__name__)
