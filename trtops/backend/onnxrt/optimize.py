"""Optimizes one ONNX model under candidate after candidate, and keeps the results as files in ONNX Runtime's format."""

import mmap
import shutil
import tempfile
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import onnx
from typing_extensions import Self

from trtops import errors
from trtops.backend.onnx import walk
from trtops.backend.onnx.copying import copy_of
from trtops.backend.onnx.fold import fold_constants
from trtops.backend.onnx.with_onnxruntime import check_loads
from trtops.backend.onnxrt.device import new_session
from trtops.backend.onnxrt.engine import open_plan
from trtops.backend.onnxrt.library import ort
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.plan import Plan, read_plan
from trtops.backend.onnxrt.session import CUDA, ORT_ERRORS, find_providers, session_options, unsupported_op, why
from trtops.backend.onnxrt.tactics import CUDA_GRAPH, Candidate, Tactic
from trtops.spec import OnnxRuntimeOptions
from trtops.system.activity import Activity
from trtops.system.limits import limited_memory, too_much
from trtops.system.processes import temporary_prefix
from trtops.tables import size

_MAX_GAP = 10  # times the number of nodes; ONNX Runtime loads any engine whose nodes have smaller numbers


@dataclass(frozen=True)
class Optimized:
    """The model as optimized under one candidate, in a file removed when its :class:`Optimizer` is closed."""

    candidate: Candidate
    path: Path
    seconds: float

    @property
    def plan(self) -> bytes:
        """The file's content, read at each access."""
        return self.path.read_bytes()

    @cached_property
    def graph(self) -> Plan:
        """The optimized graph, read without the weights."""
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
            return read_plan(plan)


class Optimizer:
    """Optimizes one model under each candidate once; a context manager owning a temporary folder.

    ONNX Runtime optimizes while it creates a session, so each candidate costs about one loading of the model.
    """

    def __init__(
        self, model: onnx.ModelProto, options: OnnxRuntimeOptions, log: SessionLog, attempt_file: str | None = None
    ) -> None:
        """Prepare to optimize a model; it must have all its weights inside and not change afterwards.

        The attempt file receives each candidate's id before ONNX Runtime, which may crash, gets the candidate.
        """
        self.model = model
        self._options = options
        self._providers = find_providers(options.providers)
        self._on_gpu = options.on_gpu
        self._threads = options.intra_op_threads
        self._log = log
        self._attempt_file = attempt_file
        self._source = model.SerializeToString()
        self._is_folded = False
        self._weight_bytes = walk.weight_bytes(model)
        self._folder = tempfile.TemporaryDirectory(prefix=temporary_prefix("optimized"))
        self._done: dict[str, Optimized] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._folder.cleanup()

    def __call__(self, candidate: Candidate) -> Optimized:
        """Return the model optimized under a candidate; EngineBuildError if ONNX Runtime refuses it."""
        # Options of the provider decide how the engine is loaded; its graph is optimized without them.
        plain = candidate.without_provider_settings()
        if plain != candidate:
            return replace(self(plain), candidate=candidate)
        if candidate.id not in self._done:
            self.note_attempt(candidate)
            path = Path(self._folder.name, f"{len(self._done)}.ort")
            start = time.perf_counter()
            self._write_optimized(candidate, path)
            optimized = Optimized(candidate, path, time.perf_counter() - start)
            if not self._is_folded and self._is_unloadable(optimized):
                folded = copy_of(self.model)
                fold_constants(folded)
                self._source, self._is_folded = folded.SerializeToString(), True
                self._write_optimized(candidate, path)
                optimized = Optimized(candidate, path, time.perf_counter() - start)
            self._done[candidate.id] = optimized
        return self._done[candidate.id]

    def _is_unloadable(self, optimized: Optimized) -> bool:
        """True if so few nodes are left that ONNX Runtime, when it loads them, takes their numbers for damage."""
        numbers = [node.index for node in optimized.graph.nodes if not node.scope]
        if max(numbers, default=0) <= _MAX_GAP * (len(numbers) + 1):
            return False
        try:
            open_plan(optimized.path, self._options, quiet=True)
        except errors.EngineLoadError:
            return True
        return False

    def may_change(self, tactic: Tactic) -> bool:
        """Return True if toggling a tactic may change the default's graph, by one optimization of the default.

        ONNX Runtime logs for each optimizer whether it changed the graph. Rewrite rules are not logged one by one, and
        optimizers that are off by default not at all: both are decided by the op types that they apply to.
        """
        graph = self(Candidate()).graph
        if tactic.name == CUDA_GRAPH:
            return {node.provider for node in graph.nodes} <= {CUDA}
        if not tactic.default:
            return not {node.op for node in graph.nodes}.isdisjoint(tactic.ops)
        if tactic.rule:
            return not self._op_types.isdisjoint(tactic.ops)
        changed = self._log.optimizers
        return changed.get(tactic.name, False) or not changed  # without any log lines all tactics have to be tried

    @cached_property
    def _op_types(self) -> set[str]:
        """Op types in the model, including subgraphs and functions."""
        return {node.op_type for node in walk.nodes(self.model)}

    def note_attempt(self, candidate: Candidate) -> None:
        """Write the candidate's id to the attempt file."""
        if self._attempt_file is not None:
            Path(self._attempt_file).write_text(candidate.id, encoding="utf-8")

    def _write_optimized(self, candidate: Candidate, path: Path) -> None:
        options = session_options(self._threads, log_id=self._log.log_id)
        if candidate == Candidate():
            options.log_severity_level = 0  # `may_change` reads the verbose log
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, candidate.optimization_level)
        for key, value in candidate.session_config(self.model).items():
            options.add_session_config_entry(key, value)
        # This session never runs. Packing its weights would take up to half of the time and double their memory.
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.add_session_config_entry("session.save_model_format", "ORT")
        options.optimized_model_filepath = str(path)
        try:
            check_loads(self._source)
        except errors.InferenceError as exc:
            raise errors.EngineBuildError(str(exc)) from exc
        try:
            # Constant folding may produce tensors of any size.
            with self._log.collecting(), limited_memory(6 * self._weight_bytes), Activity("optimizing the model"):
                new_session(self._source, options, self._providers, candidate.disabled_optimizers)
        except ORT_ERRORS as exc:
            path.unlink(missing_ok=True)
            if (free := shutil.disk_usage(path.parent).free) < self._weight_bytes + len(self._source):
                raise errors.EngineBuildError(
                    f"The engine cannot be written: {size(free)} are free in {path.parent.parent}. Free some, or set "
                    f"TMPDIR to a folder on another disk. ONNX Runtime reported: {why(exc)}"
                ) from exc
            raise errors.EngineBuildError(self._refusal_text(exc)) from exc

    def _refusal_text(self, exc: Exception) -> str:
        reason = f"ONNX Runtime {ort.__version__} reported: {why(exc)}"
        if "bad_alloc" in reason:
            return too_much("What is constant in the model")
        if "do not support type [9]" in reason:
            return (
                "The model has optional values, which ONNX Runtime's engine format cannot hold. "
                f"Unpack them inside the model (OptionalGetElement). {reason}"
            )
        missing = unsupported_op(exc)
        if missing is None:
            return f"ONNX Runtime built no engine. {reason}"
        op, node = missing
        if not node:  # name the first node of the type, which is given with or without its domain
            op_type = op.rpartition(":")[2].rpartition(".")[2]
            nodes = (walk.node_name(proto) for proto in walk.nodes(self.model) if proto.op_type == op_type)
            node = next(nodes, "")
        return (
            f"Op {op!r} of node {node!r} has no kernel in ONNX Runtime {ort.__version__} for these types on "
            f"{', '.join(map(str, self._providers))}. Rewrite the node in other ops, or build with a back end that "
            f"supports it. {reason}"
        )
