"""Reduce: the smallest part of a model that still fails.

Sub-models are cut out of the model and checked, in this process unless the check is an external command. Each gets as
inputs what really flows there in the whole model, observed once at the beginning, so that a part is evaluated by what it
meets in the whole.

The search goes in stages. *Halves*: a stretch of nodes, in execution order, that fails by itself while neither of its
halves does; a single wrong node is found here. *Outputs*: in that stretch the shortest beginning that fails; its last node
is needed. *Inputs*: of what is left, the shortest end that fails. *Nodes*: divide and conquer, and then delta debugging,
over whatever is between, so that in the end no single node can be left out. Answers are kept by node set, in memory and in
a journal, and no question is put twice.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx.model import Model, is_large
from trtops.backend.onnx.save import save_model
from trtops.backend.onnx.submodel import Cutter, Declared, Values
from trtops.backend.onnxrt.observe import RandomInputs, observe
from trtops.json import save_json
from trtops.metadata import TensorMetadata, check_feed
from trtops.ops.evaluation.feeds import Feeds
from trtops.ops.evaluation.submodel import Check, describe
from trtops.ops.model.opening import Source, Subject, open_model
from trtops.ops.result import finish_with, op_run
from trtops.ops.search.reduce.config import ReduceConfig
from trtops.ops.search.reduce.control import require_control
from trtops.ops.search.reduce.hunt import Evaluate, Hunt, Parts
from trtops.ops.search.reduce.journal import Journal, Step
from trtops.ops.search.reduce.result import Culprit, CulpritNode, ReduceResult
from trtops.ops.search.reduce.retrace import save_retraced
from trtops.processes import temporary_prefix
from trtops.tracking import schema
from trtops.tracking.base import NO_RUN, Run, Tracker

log = logging.getLogger(__name__)


def reduce(
    model: Source,
    check: Check,
    config: ReduceConfig | None = None,
    *,
    feeds: Iterable[Feed] | None = None,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    file: str | Path | None = None,
    progress: Callable[[Step], None] | None = None,
    evaluate: Evaluate | None = None,
) -> ReduceResult:
    """Find the smallest part of a model that still fails a check.

    Args:
        model: The model, or its path; not changed.
        check: Says whether a sub-model passes (:mod:`trtops.ops.evaluation.submodel`): a callable, a
            :class:`~trtops.ops.evaluation.submodel.ComparisonCheck` (:func:`~trtops.ops.search.reduce.checks.engine_check`
            makes one that compares engines), or a :class:`~trtops.ops.evaluation.command.CommandCheck`.
        config: How to search, and what to save.
        feeds: Inputs of the whole model, instead of what ``config.data`` says.
        tracker: The memory, which gets a run with params, numbers and the reduced models; None keeps nothing.
        experiment: Experiment to log to; the model's name unless given.
        tags: Further tags of the run.
        parent: Id of a parent run.
        file: The file that a model in memory was made from; the run is named after it.
        progress: Called after each check, from whichever thread it ran in.
        evaluate: Checks several candidates at a time; threads of this process unless given. It gets at most
            ``config.width`` candidates, and a function that must be called in this process.

    Raises:
        ModelError: If the model cannot be used, or a sub-model is too large.
        InputError: If the data does not fit the model.
        BackendError: If ONNX Runtime cannot compute the values of the model's tensors.
        ConfigError: If the journal belongs to another reduction, an output path is the model's own, or the check fails on
            whatever it is asked about, a model without a fault included.
        Exception: Whatever the check raises for the whole model; for a part of it, that counts as another failure.
    """
    config = ReduceConfig() if config is None else config
    subject = Subject.of(model, file)
    experiment = experiment or subject.name
    name = f"{subject.name} reduce"
    with op_run(tracker, experiment, name, kind="reduce", model=subject.file, tags=tags, parent=parent) as run:
        opened = open_model(model)
        if config.branches is None:
            real = config.inputs == "real" and (feeds is not None or config.data is not None)
            config = replace(config, branches="frozen" if real else "inputs")
        found, steps = _find_culprits(opened, check, config, feeds, progress, evaluate)
        result = replace(found, title=f"reduce {subject}", subject=str(subject.file or "")).kept_in(run, experiment)
        run.log_params({"model": opened.name, "check": describe(check), **config.to_dict()})
        if run is not NO_RUN:
            _log_result(run, result, steps)
        finish_with(run, result, tracker)
        return result


def _find_culprits(
    model: Model,
    check: Check,
    config: ReduceConfig,
    feeds: Iterable[Feed] | None,
    progress: Callable[[Step], None] | None,
    evaluate: Evaluate | None,
) -> tuple[ReduceResult, Sequence[Step]]:
    """What is found, and every check on the way."""
    started = time.perf_counter()
    _check_paths(model, check, config)
    cutter = Cutter(model.proto(lean=True))
    if not cutter.parts:
        raise errors.InvalidModelError("The model has no nodes but Constants; there is nothing to reduce.")
    with ExitStack() as stack:
        given = _whole_model_feeds(model, config, feeds)
        journal = _open_journal(model, check, config, given)
        stack.callback(journal.close)
        stack.enter_context(_told_if_cut_short(journal))
        if journal.path is not None and config.journal is None:
            log.info("Answers are kept in %s until the end; give it as journal to resume after a kill.", journal.path)
        values = _tensor_values(model, cutter, config, given, stack)
        if evaluate is None and config.width > 1:
            evaluate = stack.enter_context(ThreadPoolExecutor(config.width)).map
        hunt = Hunt(cutter, values, check, config, journal, progress, evaluate or map)
        whole = hunt.answers[hunt.everything] if hunt.recall() else hunt.check_whole()
        found = list(hunt.culprits()) if whole.verdict == "fail" else []
        if found and not any(answer.verdict == "pass" for answer in hunt.answers.values()):
            require_control(check, given)
        culprits = tuple(_save_culprit(hunt, parts, n, config) for n, parts in enumerate(found, start=1))
        min_good = _save_min_good(hunt, found, config)
        if config.save_replay is not None:
            save_retraced(Path(config.save_replay), cutter, [hunt.nodes(parts) for parts in found], config.mode)
        if config.journal is None:
            journal.remove()
    result = ReduceResult(
        verdict="bad" if found else "good",
        whole=whole.verdict,
        culprits=culprits,
        nodes=len(cutter.order),
        checks=len(journal.steps) - journal.resumed,
        resumed=journal.resumed,
        seconds=time.perf_counter() - started,
        detail=whole.detail or ("" if found else "the whole model passes"),
        min_good=min_good,
    )
    return result, journal.steps


def _check_paths(model: Model, check: Check, config: ReduceConfig) -> None:
    if config.width > 1 and getattr(check, "one_at_a_time", False):
        raise errors.ConfigError(
            f"width is {config.width}, but the check reads every sub-model from one file. Use {{model}} in its command."
        )
    used = {path.resolve() for path in model.files()}
    artifact = getattr(check, "artifact", None)
    for name, path in [("output", config.output), ("min_good", config.min_good), ("artifact", artifact)]:
        if path is not None and Path(path).resolve() in used:
            raise errors.ConfigError(f"{name} is {path!r}, which is the model itself. Give another path.")


def _model_inputs(model: Model, config: ReduceConfig) -> TensorMetadata:
    """The model's inputs, with the shapes that the config gives them."""
    inputs = TensorMetadata.of(model.info.inputs)
    for name, shape in config.input_shapes.items():
        if name not in inputs:
            raise errors.UnknownInputError(f"input_shapes has {name!r}. {errors.near(name, inputs)}")
        inputs[name] = replace(inputs[name], shape=tuple(shape))
    return inputs


def _whole_model_feeds(model: Model, config: ReduceConfig, feeds: Iterable[Feed] | None) -> list[Feed]:
    """What the whole model is fed with; nothing where no data is wanted."""
    inputs = _model_inputs(model, config)
    if config.inputs == "declared":
        return []
    if not inputs:
        return [{}]
    given: list[Feed] = []
    for feed in config.open_for(model, feeds, inputs):
        given.append(dict(feed))
        check_feed(inputs, feed)
    return given


@contextmanager
def _told_if_cut_short(journal: Journal) -> Iterator[None]:
    """Say how an interrupted reduction is resumed."""
    try:
        yield
    except KeyboardInterrupt:
        if journal.path is not None and journal.steps:
            log.warning(
                "Interrupted after %d answers, which are kept in %s. To resume, give it as journal (--journal).",
                len(journal.steps),
                journal.path,
            )
        raise


def _open_journal(model: Model, check: Check, config: ReduceConfig, given: Sequence[Feed]) -> Journal:
    path = config.journal
    if path is None and config.output is not None:
        path = str(_path_beside(Path(config.output), "journal.jsonl"))
    if path is None:
        return Journal()
    data = f"{config.inputs}, branches {config.branches}"
    if given:
        data += f" {config.seed} {Feeds('', lambda: [_without_objects(feed) for feed in given]).digest()}"
    holds_for = {"model": model.info.sha256, "check": describe(check), "data": data}
    return Journal(Path(path), holds_for=holds_for, begin_anew=config.journal is None)


def _path_beside(output: Path, what: str) -> Path:
    """A file that goes with a reduced model: ``<name>_inputs.json``."""
    return output.with_name(f"{output.stem}_{what}")


def _without_objects(feed: Feed) -> Feed:
    """A feed with text as text, where it is given as objects: those have no bytes of their own."""
    return {name: array.astype(str) if array.dtype.kind == "O" else array for name, array in feed.items()}


def _tensor_values(
    model: Model, cutter: Cutter, config: ReduceConfig, given: Sequence[Feed], stack: ExitStack
) -> Values:
    """Values or types of the model's tensors; observed values are released when the stack closes."""
    if config.inputs == "declared":
        return Declared(cutter.model, _model_inputs(model, config))
    observed = observe(cutter, given, limit_bytes=config.memory_limit_bytes)
    stack.callback(observed.close)
    return observed if config.inputs == "real" else RandomInputs(observed, config.seed)


def _save_culprit(hunt: Hunt, parts: Parts, number: int, config: ReduceConfig) -> Culprit:
    cut = hunt.cut(parts)
    path = inputs_path = None
    if config.output is not None:
        path = Path(config.output)
        if number > 1:
            path = path.with_name(f"{path.stem}_{number}{path.suffix}")
        cut.save(path, **(config.save_as.to_options() if number == 1 else config.save_as.for_another()))
        if config.inputs != "declared":
            inputs_path = _path_beside(path, "inputs.json")
            save_json(cut.feeds, inputs_path, "inputs of the reduced model")
    return Culprit(
        nodes=tuple(CulpritNode.of(hunt.cutter.model.graph.node[i], i) for i in cut.nodes),
        minimal=parts != hunt.unfinished,
        detail=hunt.answers[parts].detail,
        path=None if path is None else str(path),
        inputs_path=None if inputs_path is None else str(inputs_path),
        _proto=cut.proto,
    )


def _save_min_good(hunt: Hunt, found: Sequence[Parts], config: ReduceConfig) -> str | None:
    """Save the passing sub-model closest in size to the first culprit; None if there is none."""
    passing = [parts for parts, answer in hunt.answers.items() if answer.verdict == "pass"]
    if config.min_good is None or not found or not passing:
        return None
    size = len(hunt.nodes(found[0]))
    closest = min(passing, key=lambda parts: (abs(len(hunt.nodes(parts)) - size), len(parts), sorted(parts)))
    hunt.cut(closest).save(config.min_good, **config.save_as.for_another())
    return config.min_good


def _log_result(run: Run, result: ReduceResult, steps: Iterable[Step]) -> None:
    """Log numbers, every step, and each culprit as a model."""
    run.log_metrics(
        {
            (schema.Metric.REDUCE, "nodes"): result.nodes,
            (schema.Metric.REDUCE, "culprits"): len(result.culprits),
            (schema.Metric.REDUCE, "culprit_nodes"): min((len(c.nodes) for c in result.culprits), default=0),
            (schema.Metric.REDUCE, "checks"): result.checks,
            (schema.Metric.REDUCE, "seconds"): result.seconds,
        }
    )
    run.log_json(result, schema.Artifact.REDUCE_RESULT)
    run.log_text("".join(f"{step.to_json(indent=None)}\n" for step in steps), schema.Artifact.REDUCE_STEPS)
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("reduce")) as folder:
        for number, culprit in enumerate(result.culprits, start=1):
            path = Path(folder, f"culprit_{number}.onnx")
            save_model(culprit.model, path, external_data_path="" if is_large(culprit.model) else None)
        for file in sorted(Path(folder).iterdir()):
            run.log_file(file, f"{schema.Artifact.REDUCE}{file.name}")
