"""The ops: functions from a frozen config to a frozen result, for Python, the command line and flows.

Arguments that ops share: ``tracker`` is the tracking store, :func:`trtops.default_tracker` unless given (searches that
may run without a record keep none then); ``experiment`` is the experiment to log to, by default the name of the model;
``tags`` are further tags of the run; ``parent`` is the id of a run that it belongs to; ``progress`` is called after
each item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtops.lazy import exports

if TYPE_CHECKING:
    from trtops.backend.onnx.edit import unbounded_tensors
    from trtops.ops.auditing.op import AuditConfig, audit
    from trtops.ops.auditing.prune import prune_runs
    from trtops.ops.auditing.result import AuditResult
    from trtops.ops.bundling.op import BundleConfig, BundleResult, bundle
    from trtops.ops.campaign.bisect import bisect
    from trtops.ops.campaign.bisect_result import BisectConfig, BisectResult
    from trtops.ops.campaign.config import DebugBuildConfig
    from trtops.ops.campaign.debug_build import DebugBuildResult, debug_build
    from trtops.ops.campaign.diff_tactics import DiffTacticsConfig, DiffTacticsResult, diff_tactics
    from trtops.ops.campaign.prove import ProveConfig, ProveResult, prove
    from trtops.ops.comparing.compare import CompareConfig, CompareResult, compare
    from trtops.ops.comparing.run import RunConfig, RunResult, run_models
    from trtops.ops.comparing.saved_data import concat, merge
    from trtops.ops.engines.board import board
    from trtops.ops.engines.build_list import BuildListConfig, BuildListResult, build_list
    from trtops.ops.engines.calibrate import CalibrateConfig, CalibrateResult, calibrate
    from trtops.ops.engines.convert import ConvertConfig, convert
    from trtops.ops.engines.convert_result import ConvertResult, builds_table
    from trtops.ops.engines.model_list import ListedModel, ModelList, folder_list, read_model_list
    from trtops.ops.engines.sensitivity import SensitivityConfig, SensitivityResult, sensitivity
    from trtops.ops.evaluation.check import CheckConfig
    from trtops.ops.evaluation.data import DataConfig
    from trtops.ops.evaluation.limits import default_tolerances, tolerances_for
    from trtops.ops.gate.matrix import MatrixResult, gate_all
    from trtops.ops.gate.op import GateConfig
    from trtops.ops.gate.policy import Policy, read_policy
    from trtops.ops.gate.result import GateResult
    from trtops.ops.model.capability import capability
    from trtops.ops.model.inspect.data import inspect_data, tensors_text
    from trtops.ops.model.inspect.engines import InspectEnginesConfig, InspectEnginesResult, inspect_engines
    from trtops.ops.model.inspect.models import inspect_model
    from trtops.ops.model.inspect.records import inspect_calibration, inspect_tactics
    from trtops.ops.model.lint import lint
    from trtops.ops.model.model_files import SaveConfig, open_model
    from trtops.ops.model.observed_shapes import with_observed_shapes
    from trtops.ops.model.plugins import match_plugins, read_matches, replace_plugins, write_matches
    from trtops.ops.model.surgeon import (
        SurgeonResult,
        extract,
        insert,
        prune,
        reconstruct_weights,
        remove_nodes,
        sanitize,
        strip_weights,
    )
    from trtops.ops.registry.accepted import resolve
    from trtops.ops.registry.deny import deny, pardon
    from trtops.ops.registry.promote import PromoteConfig, PromoteResult, promote
    from trtops.ops.result import OpResult
    from trtops.ops.search.accuracy import AccuracyConfig, AccuracyResult, Emulated, accuracy
    from trtops.ops.search.command import CommandCheck
    from trtops.ops.search.precision import (
        ModelWriter,
        PrecisionConfig,
        PrecisionResult,
        checking_candidates,
        precision,
    )
    from trtops.ops.search.precision_engines import EngineWriter, require_layer_precisions
    from trtops.ops.search.reduce import ReduceConfig, ReduceResult, engine_check, reduce
    from trtops.ops.search.repeat import RepeatConfig, RepeatResult, repeat, sort_artifacts
    from trtops.ops.search.submodel import ComparisonCheck, EngineRunner
    from trtops.ops.stored_runs import (
        Report,
        compare_page,
        inspect_run,
        list_runs,
        reevaluate,
        report,
        runs_csv,
        side_by_side,
    )
    from trtops.ops.triaging.op import triage
    from trtops.ops.triaging.result import TriageConfig, TriageResult
    from trtops.spec import BuildConfig
    from trtops.tracking.builds import load_cache

# Names are imported on first use, so that each op loads only its own dependencies.
__getattr__, __dir__ = exports(__name__)
