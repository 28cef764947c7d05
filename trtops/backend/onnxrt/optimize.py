"""ONNX model in, optimized model in ONNX Runtime's format out, one candidate at a time."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnxruntime as ort

from trtops import errors, mapped
from trtops.backend.onnx import copying, shapes, walk
from trtops.backend.onnx.external import expected_bytes
from trtops.backend.onnx.model import is_lean
from trtops.backend.onnx.save import save_model
from trtops.backend.onnx.with_onnxruntime import check_loads
from trtops.backend.onnxrt import large
from trtops.backend.onnxrt.log import SessionLog
from trtops.backend.onnxrt.plan import Plan, read_plan
from trtops.backend.onnxrt.session import ORT_ERRORS, find_providers, lean_source, session_options, unsupported_op, why
from trtops.backend.onnxrt.tactics import Candidate, Tactic
from trtops.limits import limited_memory, too_much
from trtops.processes import temporary_prefix

if TYPE_CHECKING:
    from typing_extensions import Self


_SHAPE_BYTES = 1024
_put_small = copying.put_small(_SHAPE_BYTES)


@dataclass(frozen=True)
class Optimized:
    """What ONNX Runtime made of the model under one candidate.

    Attributes:
        candidate: The candidate.
        path: File with the optimized model, an engine's plan; there as long as its :class:`Optimizer` is open.
        seconds: How long it took.
        providers: Full names of the execution providers it was optimized for.
    """

    candidate: Candidate
    path: Path
    seconds: float
    providers: tuple[str, ...]

    @property
    def plan(self) -> bytes | memoryview:
        """The file's content, read anew each time; one of more than 2 GiB is mapped."""
        return mapped.read_or_map(self.path)

    @cached_property
    def graph(self) -> Plan:
        """The optimized graph."""
        return read_plan(self.plan, self.providers)

    def taken_plan(self) -> bytes | memoryview:
        """The file's content once the :class:`Optimizer` is closed: one of more than 2 GiB is taken out of its folder."""
        if self.path.stat().st_size > mapped.MOST_READ:
            return mapped.take_file(self.path)
        return self.path.read_bytes()


class Optimizer:
    """Optimizes one model under candidate after candidate, each once; a context manager.

    What comes out is kept in a temporary folder, since a handful of engines can be too much for memory. Creating a session
    is what optimizes, so each candidate costs about one loading of the model.

    A model whose engine may have more than 2 GiB goes by way of files, and its engine is not in ONNX Runtime's format
    (:mod:`trtops.backend.onnxrt.large`).

    Attributes:
        model: The model, after its precision was rewritten; a large one without its weights.
    """

    def __init__(
        self,
        model: onnx.ModelProto,
        *,
        providers: tuple[str, ...],
        threads: int,
        log: SessionLog,
        attempt_file: str | None = None,
    ) -> None:
        """Take a model, which must not be changed afterwards.

        Args:
            model: The model, with all its weights inside or anchored (:meth:`trtops.backend.onnx.model.Model.proto`).
            providers: Execution providers in order of preference.
            threads: Threads within one operator; 0 lets ONNX Runtime decide.
            log: Collects what ONNX Runtime says.
            attempt_file: Where each candidate's id is written before ONNX Runtime is given it, which may take the process
                down.

        Raises:
            EngineBuildError: If the model is large, and this ONNX Runtime too old for its engine.
            OSError: If a large model cannot be written to a temporary folder.
        """
        self.model = model
        self._providers = find_providers(providers)
        self._threads = threads
        self._log = log
        self._done: dict[str, Optimized] = {}
        self._made = 0
        self._attempt_file = attempt_file
        self._bytes = sum(expected_bytes(tensor) or 0 for tensor in walk.tensors(model))
        self._is_large = large.is_needed(model)
        if self._is_large:
            large.check_supported(self._bytes)
        self._folder = tempfile.TemporaryDirectory(prefix=temporary_prefix("optimized"))
        self._source: bytes | str = ""
        self._lean: onnx.ModelProto | None = None
        if is_lean(model):
            self._lean = model
            self._declare_types(model)
        elif self._is_large:
            try:
                self._write(model)
            except BaseException:
                self._folder.cleanup()
                raise
        else:
            self._source = model.SerializeToString()

    def _write(self, model: onnx.ModelProto) -> None:
        """Write a large model that is in memory to a file, and keep its structure alone."""
        self._declare_types(model)
        self.model = copying.copy_model(model, _put_small)
        self._source = str(Path(self._folder.name, "model.onnx"))
        save_model(model, self._source, external_data_path="")

    def _declare_types(self, model: onnx.ModelProto) -> None:
        """Let a model declare what is known of its tensors, which the graph of an engine that is no ORT file keeps."""
        with contextlib.suppress(errors.ModelError):
            shapes.infer_shapes(model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._folder.cleanup()

    def __call__(self, candidate: Candidate) -> Optimized:
        """Optimize the model under a candidate.

        Raises:
            EngineBuildError: If ONNX Runtime refuses the model; the message names the op and node where it can.
        """
        done = self._done.get(candidate.id)
        if done is None:
            self.begin(candidate)
            path = Path(self._folder.name, f"{self._made}.ort")
            self._made += 1
            start = time.perf_counter()
            self._write_optimized(candidate, path)
            names = tuple(each if isinstance(each, str) else each[0] for each in self._providers)
            done = self._done[candidate.id] = Optimized(candidate, path, time.perf_counter() - start, names)
        return done

    def may_change(self, tactic: Tactic) -> bool:
        """Whether a tactic's other setting can give another graph than the default, as far as one look at that one tells.

        While it optimizes, ONNX Runtime says of each optimizer whether it changed anything. One that did not can be left out
        and changes nothing. Rules that run many at a time are not told of; they, and what is off by default, are known by
        the ops that they are for.

        Raises:
            EngineBuildError: If ONNX Runtime refuses the model.
        """
        graph = self(Candidate()).graph
        if not tactic.default or tactic.rule:
            ops = {node.op for node in graph.nodes} if not tactic.default else self._ops
            return not ops.isdisjoint(tactic.ops)
        heard = self._log.optimizers
        return heard.get(tactic.name, False) or not heard  # a release that tells nothing leaves all to be tried

    @cached_property
    def _ops(self) -> set[str]:
        """Types of the ops in the model, in bodies and functions too."""
        return {node.op_type for node in walk.nodes(self.model)}

    def begin(self, candidate: Candidate) -> None:
        """Note that ONNX Runtime is given a candidate now."""
        if self._attempt_file is not None:
            Path(self._attempt_file).write_text(candidate.id, encoding="utf-8")

    def _write_optimized(self, candidate: Candidate, path: Path) -> None:
        options = session_options(self._threads, log_id=self._log.log_id)
        if candidate == Candidate():
            options.log_severity_level = 0  # see `may_change`
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, candidate.optimization_level)
        for key, value in candidate.session_config.items():
            options.add_session_config_entry(key, value)
        # Nobody runs it, and packing weights takes up to half of its time, and their size in memory once more.
        options.add_session_config_entry("session.disable_prepacking", "1")
        if self._is_large:
            folder = Path(self._folder.name, f"{path.stem}-parts")
            folder.mkdir()
            self._require_room(folder)
            options.optimized_model_filepath = str(folder / "model.onnx")
            prefix = "session.optimized_model_external_initializers_"
            options.add_session_config_entry(f"{prefix}file_name", large.WEIGHTS)
            options.add_session_config_entry(f"{prefix}min_size_in_bytes", str(_SHAPE_BYTES))
        else:
            options.add_session_config_entry("session.save_model_format", "ORT")
            options.optimized_model_filepath = str(path)
        with contextlib.ExitStack() as stack:
            if self._lean is None:
                source = self._source
                self._check_loads(source)
            else:  # whose weights a child would not find; nor is it a few bytes that outgrow all
                source = stack.enter_context(lean_source(self._lean, options))
            self._optimize(source, options, candidate, path)
        if self._is_large:
            large.pack(folder / "model.onnx", folder / large.WEIGHTS)
            os.replace(folder / large.WEIGHTS, path)

    def _check_loads(self, source: bytes | str) -> None:
        try:
            check_loads(source)
        except errors.InferenceError as exc:
            raise errors.EngineBuildError(str(exc)) from exc

    def _optimize(self, source: bytes | str, options: ort.SessionOptions, candidate: Candidate, path: Path) -> None:
        try:
            with self._log.collecting(), limited_memory(6 * self._bytes):
                ort.InferenceSession(
                    source, options, providers=self._providers, disabled_optimizers=candidate.disabled_optimizers
                )
        except ORT_ERRORS as exc:
            path.unlink(missing_ok=True)
            raise errors.EngineBuildError(self._refusal_text(exc)) from exc

    def _require_room(self, folder: Path) -> None:
        """Refuse to begin what the disk does not take: ONNX Runtime would say in the end that it failed to write.

        Raises:
            EngineBuildError: If the engine will not fit.
        """
        free = shutil.disk_usage(folder).free
        if free < self._bytes:
            raise errors.EngineBuildError(
                f"{tempfile.gettempdir()} cannot take the engine of about {self._bytes / 1e6:.0f} MB: {free / 1e6:.0f} MB are "
                "free. Make room, or set TMPDIR to another folder."
            )

    def _refusal_text(self, exc: Exception) -> str:
        said = f"ONNX Runtime {ort.__version__} said: {why(exc)}"
        if "bad_alloc" in said:
            return too_much("What is constant in the model")
        if "do not support type [9]" in said:
            return (
                "The model has optional values, which ONNX Runtime's own format, in which engines are kept, does not hold. "
                f"Take them apart inside the model (OptionalGetElement). {said}"
            )
        missing = unsupported_op(exc)
        if missing is None:
            return f"No engine came out. {said}"
        op, node = missing
        return (
            f"Op {op!r} of node {node or self._first_node(op)!r} has no kernel in ONNX Runtime {ort.__version__} for "
            f"these types on {', '.join(str(p) for p in self._providers)}. Rewrite the node in other ops, or build with "
            f"a back end that has it. {said}"
        )

    def _first_node(self, op: str) -> str:
        """What the first node of a type goes by, the type given with or without its domain."""
        op_type = op.rpartition(":")[2].rpartition(".")[2]
        return next((walk.node_name(node) for node in self.model.graph.node if node.op_type == op_type), "")
