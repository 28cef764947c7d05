"""Triage: from a bad engine to the kind of fault, its location, a remedy, and a minimal failing case.

A table of questions. Each has one answer out of a few, which selects the next question.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from trtops.backend.onnx.model import Model
from trtops.ops.arguments import checked_arguments
from trtops.ops.evaluation.data import check_source
from trtops.ops.result import model_file, op_run
from trtops.ops.triaging import engine_questions as engine
from trtops.ops.triaging import model_questions as model_
from trtops.ops.triaging.result import Answer, Step, TriageConfig, TriageResult
from trtops.ops.triaging.subject import Subject
from trtops.system.worker import close_workers
from trtops.tracking import schema
from trtops.tracking.base import Run, Tracker
from trtops.tracking.memory import MemoryTracker
from trtops.verdict import PASSED

_ANY = "*"


class Question(NamedTuple):
    """One question of the table."""

    asks: str
    ask: Callable[[Subject, str], Answer]  # answers it, in a run below the one with this id
    then: Mapping[str, str]  # the next question by answer, or under ``*`` for all others; without one, triage ends


# The order rules out cheap causes first: no verdict on bad data or a broken model is valid, and an engine that is only
# sometimes bad depends on the builder's tactics.
QUESTIONS: dict[str, Question] = {
    "data": Question("Is the data usable?", model_.ask_data, {"usable": "structure"}),
    "structure": Question("Is the model sound, node by node?", model_.ask_structure, {"sound": "shapes"}),
    "shapes": Question("Does the model itself run at the ends of its profiles?", model_.ask_shapes,
        {"no profiles": "repeats", "all run": "repeats"}),
    "repeats": Question("Does the model itself give the same outputs twice, without NaN?", model_.ask_repeats,
        {"yes": "golden"}),
    "golden": Question("Is the model itself right?", model_.ask_golden, {"none given": "build", "agrees": "build"}),
    "build": Question("Is the engine bad?", engine.ask_build,
        {"bad": "again", "bad when rounded": "divergence", "it fails": "minimal"}),
    "again": Question("Is it bad every time?", engine.ask_again,
        {"every time": "precision", "not every time": "campaign"}),
    "campaign": Question("Which choice of the builder makes builds bad?", engine.ask_campaign,
        {"none is confirmed": "precision"}),
    "precision": Question("Is it the precision, or the builder?", engine.ask_precision,
        {"the precision": "divergence", "quantization": "ranges", "the builder": "tactic"}),
    "divergence": Question("Where does rounding go wrong, and how?", engine.ask_divergence, {_ANY: "keep"}),
    "keep": Question("Which nodes must stay in FP32?", engine.ask_keep, {_ANY: "minimal"}),
    "ranges": Question("Does a calibrated range cut off values?", engine.ask_ranges,
        {"calibrated here": "layers", "all fit": "layers", "other causes": "layers"}),
    "layers": Question("Which layers does INT8 cost most?", engine.ask_layers, {}),
    "tactic": Question("Which choice of the builder makes it bad?", engine.ask_tactic, {_ANY: "minimal"}),
    "minimal": Question("How small does the failing case get?", engine.ask_minimal, {_ANY: "bundle"}),
    "bundle": Question("Can it be reproduced without trtops?", engine.ask_bundle, {}),
}  # fmt: skip
"""Every question. The first is ``data``."""


@checked_arguments
def triage(
    model: str | Path,
    config: TriageConfig = TriageConfig(),
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    progress: Callable[[Step], None] | None = None,
) -> TriageResult:
    """Find out why an engine is bad.

    With a tracker, the run has one run below it for each question. ``progress`` is called before each question, and
    again with its answer.

    >>> result = triage("model.onnx", TriageConfig(check=trtops.CheckConfig(data="feed.npz")))
    >>> result.headline
    'nothing is wrong'
    >>> [step.question for step in result.steps]
    ['data', 'structure', 'shapes', 'repeats', 'golden', 'build']
    """
    store: Tracker = MemoryTracker() if tracker is None else tracker
    check_source(config.check.data)
    path = model_file(model).absolute()
    experiment = experiment or path.stem
    subject = Subject(path, config, store, experiment, tags or {})
    began = time.perf_counter()
    steps: list[Step] = []
    try:
        with op_run(store, experiment, f"{path.stem} triage", kind="triage", model=path, tags=tags) as op:
            run = op.run
            run.set_tags({schema.Tag.MODEL_SHA256: Model.load(path).info.sha256})
            run.log_params({"model": path.name, **config.build.to_dict()})
            result = TriageResult(title=f"triage {path.name}", verdict="good", steps=())
            name = "data"
            while name:
                question = QUESTIONS[name]
                if config.minutes is not None and (time.perf_counter() - began) / 60 >= config.minutes:
                    result = replace(result, verdict="error", steps=tuple(steps), next_question=question.asks)
                    run.fail(f"Stopped after {config.minutes:g} minutes; next: {question.asks}")
                    return result if tracker is None else op.recorded(result)
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
            result = replace(result, steps=tuple(steps), minimal=minimal, bundle=bundle)
            # Outputs of an engine that ignores the precision may be right, and its verdict still bad.
            engine_is = subject.answers.get("build", "good")
            if result.kind != "none" or engine_is not in PASSED:
                result = replace(result, verdict="bad")
            elif engine_is == "unproven":
                result = replace(result, verdict="unproven")
            seconds = time.perf_counter() - began
            run.log_metrics({("triage", "builds"): float(result.builds), ("triage", "seconds"): seconds})
            run.set_tags({schema.Tag.FAULT: result.kind})
            result = op.finish(result)
            return result if tracker is not None else replace(result, run_id="")  # its run ends with this call
    finally:
        close_workers()
        shutil.rmtree(subject.files, ignore_errors=True)


def _ask(subject: Subject, run: Run, name: str, question: Question) -> Step:
    """Ask one question, in a run of its own below the run of the triage."""
    started = time.perf_counter()
    with op_run(name=question.asks, kind="triage_step", **subject.below(run.id)) as op:
        child = op.run
        answer = question.ask(subject, child.id)
        seconds = time.perf_counter() - started
        note = "\n".join([f"**{answer.answer}**", "", *(f"- {line}" for line in answer.evidence)])
        child.set_tags({schema.Tag.NOTE: note[: schema.MAX_TAG]})
        child.log_metrics({("triage", "builds"): float(answer.builds), ("triage", "seconds"): seconds})
        child.finish("unproven" if answer.answer == "unproven" else "good" if answer.kind is None else "bad")
    return Step(**asdict(answer), question=name, asks=question.asks, seconds=seconds, run_id=child.id)
