"""Triage: from a bad engine to the kind of fault, its place, a remedy, and the smallest case that shows it.

A table of questions. Each has one answer out of a few, which selects the next question. Answers are stored in the run
at once, so that an interrupted or killed triage resumes with the next question.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.ops.campaign.workers import close_workers
from trtops.ops.evaluation.feeds import check_source
from trtops.ops.result import finish_with, model_file, op_run
from trtops.ops.triaging import engine_questions as engine
from trtops.ops.triaging import model_questions as model_
from trtops.ops.triaging.result import Answer, Step, TriageConfig, TriageResult
from trtops.ops.triaging.subject import Subject
from trtops.tracking import schema
from trtops.tracking.base import Run, Tracker, ended_if_whole
from trtops.tracking.memory import MemoryTracker

log = logging.getLogger(__name__)

_ANY = "*"


class Question(NamedTuple):
    """One question of the table: what it asks, why now, and the function that answers it in a given run.

    ``then`` has the next question by answer, or under ``*`` for all others. Without one, triage ends.
    """

    asks: str
    why: str
    ask: Callable[[Subject, str], Answer]
    then: Mapping[str, str]


QUESTIONS: dict[str, Question] = {
    "data": Question(
        "Is the data usable?", "No verdict on bad data is valid.", model_.ask_data, {"usable": "structure"},
    ),
    "structure": Question(
        "Is the model sound, node by node?", "The data is usable; a broken file would explain everything.",
        model_.ask_structure, {"sound": "shapes"},
    ),
    "shapes": Question(
        "Does the model itself run at the ends of its profiles?",
        "Every node runs on the data; an engine is built for more shapes.",
        model_.ask_shapes, {"no profiles": "repeats", "all run": "repeats"},
    ),
    "repeats": Question(
        "Does the model itself give the same outputs twice, without NaN?",
        "Outputs that change cannot be compared.", model_.ask_repeats, {"yes": "golden"},
    ),
    "golden": Question(
        "Is the model itself right?", "It runs and repeats; a wrong model gives a wrong engine.",
        model_.ask_golden, {"none given": "build", "agrees": "build"},
    ),
    "build": Question(
        "Is the engine bad?", "No fault of the model is known.", engine.ask_build,
        {"bad": "again", "bad when rounded": "divergence", "it fails": "minimal"},
    ),
    "again": Question(
        "Is it bad every time?", "An engine that is bad only sometimes depends on the builder's tactics.",
        engine.ask_again, {"every time": "precision", "not every time": "campaign"},
    ),
    "campaign": Question(
        "Which choice of the builder makes builds bad?", "Some builds of the same spec are good.",
        engine.ask_campaign, {"none is confirmed": "precision"},
    ),
    "precision": Question(
        "Is it the precision, or the builder?", "It is bad every time, so it is not a random choice.",
        engine.ask_precision, {"the precision": "divergence", "quantization": "ranges", "the builder": "tactic"},
    ),
    "divergence": Question(
        "Where does rounding go wrong, and how?", "Rounding alone makes it bad, without a builder.",
        engine.ask_divergence, {_ANY: "keep"},
    ),
    "keep": Question(
        "Which nodes must stay in FP32?", "The place of the fault is known; more or fewer nodes may have to be kept.",
        engine.ask_keep, {_ANY: "minimal"},
    ),
    "ranges": Question(
        "Does a calibrated range cut off values?", "FP32 is right, and INT8 is not.",
        engine.ask_ranges, {"calibrated here": "layers", "all fit": "layers", "other causes": "layers"},
    ),
    "layers": Question("Which layers does INT8 cost most?", "The ranges are not the cause.", engine.ask_layers, {}),
    "tactic": Question(
        "Which choice of the builder makes it bad?", "Neither the model nor the precision is the cause.",
        engine.ask_tactic, {_ANY: "minimal"},
    ),
    "minimal": Question(
        "How small does the failing case get?", "The cause is known as far as possible; a report needs a small case.",
        engine.ask_minimal, {_ANY: "bundle"},
    ),
    "bundle": Question(
        "Can it be reproduced without trtops?", "A report that cannot be reproduced is not read.",
        engine.ask_bundle, {},
    ),
}  # fmt: skip
"""Every question. The first is ``data``."""


def triage(
    model: str | Path | None = None,
    config: TriageConfig | None = None,
    *,
    tracker: Tracker | None = None,
    resume: str | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    progress: Callable[[Step], None] | None = None,
) -> TriageResult:
    """Find out why an engine is bad.

    Args:
        model: The ONNX file; by default that of the triage to resume.
        config: What is asked. A resumed triage keeps its own, except for ``minutes`` and ``output``.
        tracker: The tracking store, for a run with one run below it for each question; nothing is kept without one.
        resume: The run of an interrupted or killed triage, or the first characters of its id.
        experiment: Experiment to log to; the model file's name without its ending by default.
        tags: Further tags of all runs.
        progress: Called before each question, and again with its answer.

    Returns:
        All questions with their answers. A fault that was found is a result, not an error.

    Raises:
        ConfigError: If there is no model, or the model of a triage to resume has changed.
        LogError: If the triage to resume has ended, or is running in another process.
        TrtopsError: Any error that prevents an answer; earlier answers are kept.
    """
    store: Tracker = MemoryTracker() if tracker is None else tracker
    if resume is not None:
        return _resume(store, resume, model, config, tags, progress)
    if model is None:
        raise errors.ConfigError("There is no model. Give an ONNX file, or the run of a triage to resume.")
    config = TriageConfig() if config is None else config
    check_source(config.check.data)
    path = model_file(model).absolute()
    experiment = experiment or path.stem
    with op_run(store, experiment, f"{path.stem} triage", kind="triage", model=path, tags=tags) as run:
        run.set_tags({schema.Tag.MODEL_SHA256: Model.load(path).info.sha256})
        run.log_params({"model": path.name, **schema.flat_params(config.build)})
        return _ask_all(Subject(path, config, store, experiment, tags or {}), run, [], progress)


def _resume(
    tracker: Tracker,
    resume: str,
    model: str | Path | None,
    config: TriageConfig | None,
    tags: Mapping[str, str] | None,
    progress: Callable[[Step], None] | None,
) -> TriageResult:
    run_id = tracker.whole_id(resume)
    info = ended_if_whole(tracker, tracker.info(run_id))
    data = tracker.peek(run_id, schema.Artifact.TRIAGE) if info.kind == "triage" else None
    if data is None:
        found = info.kind or "a run of another tool"
        raise errors.ConfigError(f"Run {run_id} cannot be resumed: expected a triage, found {found}. Start a new one.")
    kept = json.loads(data)
    begun = TriageConfig.from_dict(kept["config"])
    if config is not None:
        begun = replace(begun, minutes=config.minutes, output=config.output or begun.output)
    path = Path(model or info.tags[schema.Tag.MODEL_PATH]).absolute()
    if Model.load(path).info.sha256 != info.tags.get(schema.Tag.MODEL_SHA256):
        raise errors.ConfigError(f"{path} is not the model of triage {run_id}. Give the path of that model.")
    steps = [Step.from_dict(each) for each in kept["steps"]]
    subject = Subject(path, begun, tracker, info.experiment, tags or {})
    for name in (engine.MINIMAL, engine.INPUTS):
        found_file = tracker.peek(info.id, f"{schema.Artifact.TRIAGE_FILES}{name}")
        if found_file is not None:
            (subject.files / name).write_bytes(found_file)
    run = tracker.reopen(run_id)
    try:
        return _ask_all(subject, run, steps, progress)
    except BaseException as exc:
        run.fail(exc)
        raise


def _ask_all(subject: Subject, run: Run, steps: list[Step], progress: Callable[[Step], None] | None) -> TriageResult:
    """Ask the questions after those that are answered, until all are answered or time runs out."""
    began = time.perf_counter()
    title, limit = f"triage {subject.path.name}", subject.config.minutes
    subject.answers.update((step.question, step.answer) for step in steps)
    try:
        while True:
            values: dict[str, Any] = {"config": subject.config.to_dict(), "steps": [step.to_dict() for step in steps]}
            run.log_json(values, schema.Artifact.TRIAGE)
            then = QUESTIONS[steps[-1].question].then if steps else {_ANY: "data"}
            name = then.get(steps[-1].answer if steps else "", then.get(_ANY, ""))
            if not name:
                break
            question = QUESTIONS[name]
            if limit is not None and (time.perf_counter() - began) / 60 >= limit:
                result = TriageResult(title=title, verdict="error", steps=tuple(steps), next_question=question.asks)
                run.fail(f"Stopped after {limit:g} minutes; next: {question.asks} Resume it: --resume {run.id}")
                return result.kept_in(run, subject.experiment)
            if progress is not None:
                progress(Step("", question=name, asks=question.asks, why=question.why))
            steps.append(_ask(subject, run, name, question))
            subject.answers[name] = steps[-1].answer
            if progress is not None:
                progress(steps[-1])
            else:
                log.info("%s %s", question.asks, steps[-1].answer)
            if name in ("minimal", "bundle"):
                for file in sorted(subject.files.iterdir()):
                    run.log_file(file, f"{schema.Artifact.TRIAGE_FILES}{file.name}")
        result = TriageResult(title=title, verdict="good", steps=tuple(steps))
        if result.kind != "none" or subject.answers.get("build", "good") != "good":
            result = replace(result, verdict="bad")
        result = replace(
            result, minimal=_saved_file(subject, engine.MINIMAL), bundle=_saved_file(subject, engine.BUNDLE)
        ).kept_in(run, subject.experiment)
        run.log_metrics({("triage", "builds"): float(result.builds), ("triage", "seconds"): result.seconds})
        run.set_tags({schema.Tag.FAULT: result.kind})
        run.log_text(result.page(), schema.Artifact.TRIAGE_PAGE)
        finish_with(run, result, subject.tracker)
        return result
    finally:
        close_workers()
        shutil.rmtree(subject.files, ignore_errors=True)


def _ask(subject: Subject, run: Run, name: str, question: Question) -> Step:
    """Ask one question, in a run of its own below that of the triage."""
    started = time.perf_counter()
    options = {"kind": "triage_step", "tags": subject.tags, "parent": run.id}
    with op_run(subject.tracker, subject.experiment, question.asks, **options) as child:  # type: ignore[arg-type]
        answer = question.ask(subject, child.id)
        seconds = time.perf_counter() - started
        note = "\n".join([f"**{answer.answer}**", "", *(f"- {line}" for line in answer.evidence)])
        child.set_tags({schema.Tag.NOTE: note[: schema.MAX_TAG]})
        child.log_metrics({("triage", "builds"): float(answer.builds), ("triage", "seconds"): seconds})
        child.finish("good" if answer.kind is None else "bad")
    return Step(**asdict(answer), question=name, asks=question.asks, why=question.why, seconds=seconds, run_id=child.id)


def _saved_file(subject: Subject, name: str) -> str:
    """Where a file of the smallest case is: in the requested folder, or in the run; empty if missing."""
    file = subject.files / name
    if not file.is_file():
        return ""
    if subject.config.output is None:
        return f"{schema.Artifact.TRIAGE_FILES}{name}"
    folder = Path(subject.config.output)
    folder.mkdir(parents=True, exist_ok=True)
    for each in subject.files.glob(f"{file.stem}*"):
        shutil.copy(each, folder / each.name)
    return str(folder / name)
