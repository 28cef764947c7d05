"""Triage: from a bad engine to the kind of fault, its place, what mends it, and the smallest case that shows it.

A tree of questions. Each has one answer of a few, and by it the next question follows; what each rests on and what it costs
is kept in the run as soon as it is answered, so that a triage that was stopped, or killed, goes on where it was.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.ops.campaign.benches import close_benches
from trtops.ops.evaluation.feeds import check_source
from trtops.ops.result import finish_with, model_file, op_run
from trtops.ops.triaging import minimal, of_build, of_model
from trtops.ops.triaging.answer import Answer
from trtops.ops.triaging.config import TriageConfig
from trtops.ops.triaging.result import Step, TriageResult
from trtops.ops.triaging.subject import Subject
from trtops.tracking import schema
from trtops.tracking.base import Run, RunInfo, Tracker, ended_if_whole
from trtops.tracking.memory import MemoryTracker

log = logging.getLogger(__name__)

Ask: TypeAlias = "Callable[[Subject, str], Answer]"
_ANY = "*"


@dataclass(frozen=True)
class Question:
    """One question of the tree.

    Attributes:
        asks: It in words.
        why: What is known when it is asked.
        ask: Answers it; gets the id of the run that what is done goes below.
        then: The next question by answer; under ``*`` for all others. Without one the triage is at its end.
    """

    asks: str
    why: str
    ask: Ask
    then: Mapping[str, str]


def _minimal(of: minimal.Of) -> tuple[Ask, Ask]:
    return (
        lambda subject, parent: minimal.ask_minimal(subject, parent, of),
        lambda subject, parent: minimal.ask_bundle(subject, parent, of),
    )


_SMALLER, _BUNDLED = "How small does the failing case get?", "Can a stranger repeat it?"
_WHY_SMALLER = "The reason is known as far as it can be; whoever has to mend it wants a case without all the rest."

TREE: dict[str, Question] = {
    "data": Question("Is the data real?", "Whatever is evaluated on bad data is evaluated wrongly.", of_model.ask_data, {"usable": "structure"}),
    "structure": Question(
        "Is the model sound, node by node?", "The data is usable; a broken file explains everything.",
        of_model.ask_structure, {"sound": "shapes"},
    ),
    "shapes": Question(
        "Does the model itself run at the ends of its profiles?", "Every node runs on the data; an engine is built for more shapes.",
        of_model.ask_shapes, {"no profiles": "repeats", "all run": "repeats"},
    ),
    "repeats": Question(
        "Does the model itself give the same twice, and no NaN?", "What is not repeatable itself cannot be held against anything.",
        of_model.ask_repeats, {"yes": "golden"},
    ),
    "golden": Question(
        "Is the model itself right?", "It runs and repeats; before an engine is blamed the model is held against what it should give.",
        of_model.ask_golden, {"none given": "build", "agrees": "build"},
    ),
    "build": Question(
        "Is the engine bad?", "The model itself is right.", of_build.ask_build,
        {"bad": "again", "bad when rounded": "divergence", "it fails": "minimal, failing"},
    ),
    "again": Question(
        "Is it bad every time?", "What is bad now and then is a matter of which tactics the builder picks.", of_build.ask_again,
        {"every time": "precision", "not every time": "campaign"},
    ),
    "campaign": Question(
        "Which choice of the builder is guilty?", "Some builds of the same spec are good.", of_build.ask_campaign,
        {"none is convicted": "precision"},
    ),
    "precision": Question(
        "Is it the precision, or the builder?", "It is bad every time, so no luck of the builder's explains it.",
        of_build.ask_precision, {"the precision": "divergence", "quantization": "ranges", "the builder": "tactic"},
    ),
    "divergence": Question(
        "Where does rounding go wrong, and how?", "Rounding alone makes it bad, without any builder.",
        of_build.ask_divergence, {_ANY: "keep"},
    ),
    "keep": Question(
        "Which nodes must stay in FP32?", "It is known where it goes wrong; what has to be kept may be more, or less.",
        of_build.ask_keep, {_ANY: "minimal, rounded"},
    ),
    "ranges": Question(
        "Does a calibrated range cut off what flows there?", "FP32 is right, and INT8 is not.",
        of_build.ask_ranges, {"calibrated here": "layers", "all fit": "layers", "others are to blame": "layers"},
    ),
    "layers": Question("Which layers does INT8 cost most?", "The ranges are not to blame.", of_build.ask_layers, {}),
    "tactic": Question(
        "Which choice of the builder makes it bad?", "Neither the model nor the precision is to blame.",
        of_build.ask_tactic, {_ANY: "minimal, built"},
    ),
    "minimal, rounded": Question(_SMALLER, _WHY_SMALLER, _minimal("rounded")[0], {_ANY: "bundle, rounded"}),
    "minimal, built": Question(_SMALLER, _WHY_SMALLER, _minimal("built")[0], {_ANY: "bundle, built"}),
    "minimal, failing": Question(_SMALLER, _WHY_SMALLER, _minimal("failing")[0], {_ANY: "bundle, failing"}),
    "bundle, rounded": Question(_BUNDLED, "A report that cannot be repeated is not read.", _minimal("rounded")[1], {}),
    "bundle, built": Question(_BUNDLED, "A report that cannot be repeated is not read.", _minimal("built")[1], {}),
    "bundle, failing": Question(_BUNDLED, "A report that cannot be repeated is not read.", _minimal("failing")[1], {}),
}  # fmt: skip
"""Every question. The first is ``data``."""


@dataclass(frozen=True)
class Asking:
    """What the triage is about to do, for whoever watches.

    Attributes:
        number: Of the question, from 1.
        asks: The question.
        why: Why it is asked now.
        last: The step before; None at the beginning.
    """

    number: int
    asks: str
    why: str
    last: Step | None


def triage(
    model: str | Path | None = None,
    config: TriageConfig | None = None,
    *,
    tracker: Tracker | None = None,
    resume: str | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    progress: Callable[[Asking], None] | None = None,
) -> TriageResult:
    """Find out why an engine is bad.

    Args:
        model: The ONNX file; of a triage to resume the one that it began with, unless given.
        config: What is asked; of a triage to resume its own, but for ``minutes`` and ``output``, which count anew.
        tracker: The memory, which gets a run with one below it for each question; without one it ends with this process.
        resume: A triage's run that was stopped or killed, or what its id begins with.
        experiment: Experiment to log to; the model file's name without its ending unless given.
        tags: Further tags of all runs.
        progress: Called before each question.

    Returns:
        All questions with their answers, and what follows. A fault that was found is a result, not an error.

    Raises:
        ConfigError: If there is no model, or the model of a triage to resume has changed.
        LogError: If the triage to resume has ended, or another process works on it.
        TrtopsError: Whatever keeps a question from being answered; what was answered is kept.
    """
    memory: Tracker = MemoryTracker() if tracker is None else tracker
    if resume is not None:
        return _resumed(memory, memory.whole_id(resume), model, config, tags, progress)
    if model is None:
        raise errors.ConfigError("Which model? Give an ONNX file, or a triage's run to resume.")
    config = TriageConfig() if config is None else config
    check_source(config.check.data)
    path = model_file(model).absolute()
    experiment = experiment or path.stem
    subject = Subject(path, config, memory, experiment, tags or {})
    with op_run(memory, experiment, f"{path.stem} triage", kind="triage", model=path, tags=tags) as run:
        digest = Model.load(path).info.sha256
        run.set_tags({schema.Tag.MODEL_SHA256: digest})
        run.log_params({"model": path.name, **schema.flat_params(config.build)})
        _keep(subject, run, [])
        return _walk(subject, run, [], "data", progress)


def _resumed(
    tracker: Tracker,
    run_id: str,
    model: str | Path | None,
    config: TriageConfig | None,
    tags: Mapping[str, str] | None,
    progress: Callable[[Asking], None] | None,
) -> TriageResult:
    info = ended_if_whole(tracker, tracker.info(run_id))
    data = tracker.peek(run_id, schema.Artifact.TRIAGE) if info.kind == "triage" else None
    if data is None:
        raise errors.ConfigError(
            f"Run {run_id} is no triage that was begun: it is {info.kind or 'not ours'}. Begin a new one."
        )
    kept = json.loads(data)
    begun = TriageConfig.from_dict(kept["config"])
    if config is not None:
        begun = replace(begun, minutes=config.minutes, output=config.output or begun.output)
    path = Path(model or info.tags[schema.Tag.MODEL_PATH]).absolute()
    if Model.load(path).info.sha256 != info.tags.get(schema.Tag.MODEL_SHA256):
        raise errors.ConfigError(f"{path} is not the model that the triage began with. Say where that is.")
    steps = [Step.from_dict(each) for each in kept["steps"]]
    subject = Subject(path, begun, tracker, info.experiment, tags or {})
    _fetch_files(tracker, info, subject)
    run = tracker.reopen(run_id)
    try:
        return _walk(subject, run, steps, _next_question(steps), progress)
    except BaseException as exc:
        run.fail(exc)
        raise


def _fetch_files(tracker: Tracker, info: RunInfo, subject: Subject) -> None:
    """Have the smallest case at hand again that an earlier process left."""
    for name in (minimal.MINIMAL, "minimal_inputs.json"):
        data = tracker.peek(info.id, f"{schema.Artifact.TRIAGE_FILES}{name}")
        if data is not None:
            (subject.files / name).write_bytes(data)


def _next_question(steps: Sequence[Step]) -> str:
    """The question that follows from the last answer; empty at the end."""
    if not steps:
        return "data"
    then = TREE[steps[-1].question].then
    return then.get(steps[-1].answer, then.get(_ANY, ""))


def _walk(
    subject: Subject, run: Run, steps: list[Step], name: str, progress: Callable[[Asking], None] | None
) -> TriageResult:
    began = time.perf_counter()
    try:
        while name:
            minutes = (time.perf_counter() - began) / 60
            if subject.config.minutes is not None and minutes >= subject.config.minutes:
                return _stopped(subject, run, steps, TREE[name].asks)
            question = TREE[name]
            if progress is not None:
                progress(Asking(len(steps) + 1, question.asks, question.why, steps[-1] if steps else None))
            steps.append(_asked(subject, run, name, question))
            if progress is None:
                log.info("%s %s", question.asks, steps[-1].answer)
            _keep(subject, run, steps)
            name = _next_question(steps)
        return _finished(subject, run, steps)
    finally:
        close_benches()
        shutil.rmtree(subject.files, ignore_errors=True)


def _asked(subject: Subject, run: Run, name: str, question: Question) -> Step:
    """Ask one question, in a run of its own below the triage's."""
    started = time.perf_counter()
    with op_run(
        subject.tracker, subject.experiment, question.asks, kind="triage_step", tags=subject.tags, parent=run.id
    ) as child:
        answer = question.ask(subject, child.id)
        seconds = time.perf_counter() - started
        step = Step(
            question=name, asks=question.asks, why=question.why, seconds=seconds, run_id=child.id, **asdict(answer)
        )
        child.set_tags(
            {
                schema.Tag.NOTE: "\n".join([f"**{step.answer}**", "", *(f"- {line}" for line in step.evidence)])[
                    : schema.MAX_TAG
                ]
            }
        )
        child.log_metrics({("triage", "builds"): float(step.builds), ("triage", "seconds"): seconds})
        child.finish("bad" if step.kind is not None else "good")
    return step


def _keep(subject: Subject, run: Run, steps: Sequence[Step]) -> None:
    """Write down what is known so far: from it the triage is resumed."""
    values: dict[str, Any] = {"config": subject.config.to_dict(), "steps": [step.to_dict() for step in steps]}
    run.log_json(values, schema.Artifact.TRIAGE)
    if steps and steps[-1].question.startswith(("minimal", "bundle")):
        of_build.log_files(run, subject.files)


def _stopped(subject: Subject, run: Run, steps: Sequence[Step], asks: str) -> TriageResult:
    """Leave the run so that it can be resumed."""
    title = f"triage {subject.path.name}"
    result = TriageResult(title=title, verdict="error", steps=tuple(steps), next_question=asks)
    result = result.kept_in(run, subject.experiment)
    run.fail(f"Stopped after {subject.config.minutes:g} minutes; next: {asks} Resume it: --resume {run.id}")
    return result


def _finished(subject: Subject, run: Run, steps: Sequence[Step]) -> TriageResult:
    result = TriageResult(title=f"triage {subject.path.name}", verdict="good", steps=tuple(steps))
    if result.kind != "none" or any(step.question == "build" and step.answer != "good" for step in steps):
        result = replace(result, verdict="bad")
    result = _with_files(subject, result).kept_in(run, subject.experiment)
    run.log_metrics({("triage", "builds"): float(result.builds), ("triage", "seconds"): result.seconds})
    run.set_tags({schema.Tag.FAULT: result.kind})
    run.log_text(result.page(), schema.Artifact.TRIAGE_PAGE)
    finish_with(run, result, subject.tracker)
    return result


def _with_files(subject: Subject, result: TriageResult) -> TriageResult:
    """Where the smallest case and its bundle are: in the folder that was asked for, else in the run."""
    found: dict[str, Any] = {}
    for key, name in (("minimal", minimal.MINIMAL), ("bundle", minimal.BUNDLE)):
        file = subject.files / name
        if not file.is_file():
            continue
        found[key] = f"{schema.Artifact.TRIAGE_FILES}{name}"
        if subject.config.output is not None:
            target = Path(subject.config.output)
            target.mkdir(parents=True, exist_ok=True)
            for each in file.parent.glob(f"{file.stem}*"):
                shutil.copyfile(each, target / each.name)
            found[key] = str(target / name)
    return replace(result, **found)
