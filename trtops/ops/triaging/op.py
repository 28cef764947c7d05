"""Triage: from a bad engine to the kind of fault, its location, a remedy, and a minimal failing case.

A table of questions. Each has one answer out of a few, which selects the next question.
"""

import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.next_step import NextStep, arguments_of
from trtops.ops.arguments import checked_with_export
from trtops.ops.evaluation.data import check_source
from trtops.ops.evaluation.export_check import ExportedModel
from trtops.ops.result import model_file, model_source, op_run
from trtops.ops.triaging import engine_questions as engine
from trtops.ops.triaging import model_questions as model_
from trtops.ops.triaging.result import NOT_ANSWERED, Step, TriageConfig, TriageResult
from trtops.ops.triaging.subject import Subject
from trtops.system.worker import kept_workers
from trtops.tables import counted
from trtops.tracking import schema
from trtops.tracking.base import Run, Tracker
from trtops.tracking.memory import MemoryTracker
from trtops.verdict import PASSED

_ANY, _OPEN = "*", NOT_ANSWERED


class Question(NamedTuple):
    """One question of the table."""

    asks: str
    ask: Callable[[Subject], Step]
    then: Mapping[str, str]  # the next question by answer, or under ``*`` for all others; without one, triage ends
    # What an answer costs, about: inferences of the model, and builds. If both are 0, it is known.
    cost: Callable[[Subject], tuple[int, int]]
    verb: str = "triage"  # the command that answers it alone


# What runs of the experiment know comes first, then what costs no build. No verdict on bad data or a broken model is
# valid. If rounding alone explains the errors, builds cannot say more.
QUESTIONS: dict[str, Question] = {
    "export": Question("Does the export repeat the PyTorch module?", model_.ask_export,
        {"yes": "data", _OPEN: "data"}, lambda s: (4, 0)),
    "data": Question("Is the data usable?", model_.ask_data,
        {"usable": "structure", _OPEN: "structure"}, lambda s: (1, 0)),
    "structure": Question("Is the model sound, node by node?", model_.ask_structure,
        {"sound": "shapes", _OPEN: "shapes"}, lambda s: (0 if s.engine else 5, 0), "check lint"),
    "shapes": Question("Does the model itself run at the ends of its profiles?", model_.ask_shapes,
        {"no profiles": "repeats", "all run": "repeats", _OPEN: "repeats"}, lambda s: (2, 0)),
    "repeats": Question("Does the model itself give the same outputs twice, without NaN?", model_.ask_repeats,
        {"yes": "golden", _OPEN: "golden"}, lambda s: (4, 0)),
    "golden": Question("Is the model itself right?", model_.ask_golden,
        {"none given": "build", "agrees": "build", _OPEN: "build"}, lambda s: (3, 0)),
    "build": Question("Is the engine bad?", engine.ask_build,
        {"bad": "precision", "bad when rounded": "divergence", "it fails": "minimal"},
        lambda s: (0, 0) if s.engine else (3, 1)),
    "precision": Question("Is it the precision, or the builder?", engine.ask_precision,
        {"the precision": "divergence", "quantization": "ranges", "the builder": "tactic"},
        lambda s: (0 if s.rounding_explains else 5, 0)),
    "tactic": Question("Which choice of the builder makes it bad?", engine.ask_tactic,
        {_ANY: "minimal"}, lambda s: (0, 8)),
    "divergence": Question("Where does rounding go wrong, and how?", engine.ask_divergence,
        {_ANY: "keep"}, lambda s: (10, 0), "debug accuracy"),
    "keep": Question("Which nodes must stay in FP32?", engine.ask_keep,
        {_ANY: "minimal"}, lambda s: (30, 0), "debug precision"),
    "ranges": Question("Does a calibrated range cut off values?", engine.ask_ranges,
        {"calibrated here": "layers", "all fit": "layers", "other causes": "layers", _OPEN: "layers"},
        lambda s: (5, 1) if s.calibration else (0, 0)),
    "layers": Question("Which layers does INT8 cost most?", engine.ask_layers, {}, lambda s: (30, 0)),
    "minimal": Question("How small does the failing case get?", engine.ask_minimal,
        {_ANY: "bundle"}, lambda s: (30, 0 if "divergence" in s.answers else 10)),
    "bundle": Question("Can it be reproduced without trtops?", engine.ask_bundle, {}, lambda s: (5, 1)),
}  # fmt: skip
"""Every question. The first is ``export`` for a PyTorch model, and ``data`` for others."""


@checked_with_export
@kept_workers()
def triage(
    model: str | Path | Model,
    config: TriageConfig = TriageConfig(),
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    progress: Callable[[Step], None] | None = None,
) -> TriageResult:
    """Find out why an engine is bad.

    Engines and evaluations of earlier runs in the experiment are used. With a tracker, the run has one run below it for
    each answer. ``progress`` is called before each question, and again with its answer.

    >>> result = triage("model.onnx", TriageConfig(check=trtops.CheckConfig(data="feed.npz")))
    >>> result.headline
    'nothing is wrong'
    >>> [step.question for step in result.steps]
    ['data', 'structure', 'shapes', 'repeats', 'golden', 'build']
    """
    store: Tracker = MemoryTracker() if tracker is None else tracker
    check_source(config.check.data)
    path = model_file(model)
    experiment = experiment or path.stem
    subject = Subject(model, config, store, experiment, tags or {})
    steps: list[Step] = []
    try:
        with op_run(store, experiment, f"{path.stem} triage", kind="triage", model=path, tags=tags) as op:
            run = op.run
            run.set_tags({schema.Tag.MODEL_SHA256: subject.model.info.sha256})
            run.log_params({"model": path.name, **config.build.to_dict()})
            name = "export" if isinstance(subject.model, ExportedModel) else "data"
            while name:
                question = QUESTIONS[name]
                if progress is not None:
                    progress(Step("", question=name, asks=question.asks))
                steps.append(_ask(subject, run, name, question))
                run.log_json([step.to_dict() for step in steps], schema.Artifact.TRIAGE)
                answer = subject.answers[name] = steps[-1].answer
                if progress is not None:
                    progress(steps[-1])
                name = question.then.get(answer, question.then.get(_ANY, ""))
            folder = schema.Artifact.TRIAGE_FILES if config.output is None else f"{config.output}/"
            file_paths = {file.name: f"{folder}{file.name}" for file in subject.files.iterdir()}
            for name in sorted(file_paths):
                run.log_file(subject.files / name, f"{schema.Artifact.TRIAGE_FILES}{name}")
            if config.output is not None:
                shutil.copytree(subject.files, config.output, dirs_exist_ok=True)
            minimal, bundle = (file_paths.get(name, "") for name in (engine.MINIMAL, engine.BUNDLE))
            title = f"triage {path.name}"
            result = TriageResult(title=title, verdict="bad", steps=tuple(steps), minimal=minimal, bundle=bundle)
            # Outputs of an engine that ignores the precision may be right, and its verdict still bad.
            engine_is = subject.answers.get("build", "good")
            if result.kind == "none" and engine_is in (*PASSED, _OPEN):
                is_known = engine_is != "unproven" and not result.open
                result = replace(result, verdict="good" if is_known else "unproven")
            seconds = time.monotonic() - subject.began
            run.log_metrics({("triage", "builds"): float(result.builds), ("triage", "seconds"): seconds})
            run.set_tags({schema.Tag.FAULT: result.kind})
            result = op.finish(result)
            return result if tracker is not None else replace(result, run_id="")  # its run ends with this call
    finally:
        shutil.rmtree(subject.files, ignore_errors=True)


def _ask(subject: Subject, run: Run, name: str, question: Question) -> Step:
    """Ask one question, in a run of its own below the run of the triage, if there is time for it."""
    started, (runs, builds) = time.monotonic(), question.cost(subject)
    engine_seconds = 0.0 if subject.engine is None or not builds else subject.engine.build.seconds
    cost = runs * subject.run_seconds + builds * engine_seconds
    if (runs or builds) and subject.seconds_left <= cost:
        return _left_open(subject, name, question, builds, cost, 0.0)
    try:
        subject.parent = run.id
        with op_run(name=question.asks, kind="triage_step", **subject.below()) as op:
            child = op.run
            subject.parent = child.id
            answer = question.ask(subject)
            seconds = time.monotonic() - started
            note = "\n".join([f"**{answer.answer}**", "", *(f"- {line}" for line in answer.evidence)])
            child.set_tags({schema.Tag.NOTE: note[: schema.MAX_TAG]})
            child.log_metrics({("triage", "builds"): float(answer.builds), ("triage", "seconds"): seconds})
            child.finish("unproven" if answer.answer == "unproven" else "good" if answer.kind is None else "bad")
    except errors.WorkerError as exc:
        if subject.config.minutes is None or not exc.timed_out:
            raise
        return _left_open(subject, name, question, builds, cost, time.monotonic() - started)
    return replace(answer, question=name, asks=question.asks, seconds=seconds, run_id=child.id)


def _left_open(subject: Subject, name: str, question: Question, builds: int, cost: float, seconds_spent: float) -> Step:
    """Return the step of a question that there is no time for, with its command and its cost."""
    options, low = arguments_of(subject.config), engine.low_precision(subject)
    experiment = None if isinstance(subject.tracker, MemoryTracker) else subject.experiment
    target: dict[str, Any] = {"model": model_source(subject.source), "experiment": experiment}
    if question.verb == "check lint":
        command = NextStep(question.verb, {"model": subject.path})
    elif question.verb == "debug accuracy":
        command = NextStep.after(options, question.verb, {**target, "emulate": low})
    elif question.verb == "debug precision":
        command = NextStep.after(options, question.verb, {**target, "precision": low, "output": "mixed.onnx"})
    else:
        minutes = max(2 * (subject.config.minutes or 0), (time.monotonic() - subject.began + cost) / 60)
        command = NextStep("triage", {**options, **target, "minutes": math.ceil(minutes)})
    known_cost = f"in about {cost:.0f} s" if cost else "in a time that is not known"
    with_builds = f", with {counted(builds, 'build')}" if builds else ""
    sentence = f"`{command}` answers it {known_cost}{with_builds}."
    return Step(_OPEN, (sentence,), question=name, asks=question.asks, seconds=seconds_spent, command=command)
