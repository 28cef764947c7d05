"""Compare what MLflow holds of a run's engine and data with what the run's row, files and statement give, for audits.

That is the engine's logged model with its params, tags, metrics and files, and the run's datasets. A fact has the value
in MLflow and the one that follows from the run.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from trtops import errors
from trtops.record import sha256_file
from trtops.tracking.mlflow.artifacts import files_of
from trtops.tracking.mlflow.connection import Connection
from trtops.tracking.mlflow.engines import Engines
from trtops.tracking.mlflow.logged_models import (
    MAX_COPIED_BYTES,
    data_of,
    dataset_source,
    datasets_of,
    engine_model,
    model_entries,
    output_of,
    versions_of,
)
from trtops.tracking.reading import read_manifest
from trtops.tracking.records import Manifest
from trtops.tracking.schema import Artifact, Tag

if TYPE_CHECKING:
    from trtops.tracking.mlflow.artifacts import Files

Derived: TypeAlias = dict[str, tuple[str, str]]

_NOTHING = "nothing"
_META_FILE = "registered_model_meta"  # MLflow writes it where it loads a registered model without copying it
_OUR_TAGS = ("trtops.", "kernel/", Tag.NOTE)


def derived_facts(
    connection: Connection,
    engines: Engines,
    run: Any,
    files: Files,
    manifest: Manifest,
) -> tuple[Derived, list[str]]:
    """Return all facts of a run, and the reasons why others are not verified; ``run`` is MLflow's."""
    facts = _dataset_facts(run)
    inputs = [str(model.model_id) for model in run.inputs.model_inputs]
    reused = engines.model_of(run.info.run_id) if Tag.REUSED_FROM in run.data.tags else None
    if inputs:  # none if the account may only read the engine's experiment, which the store's log states
        facts["logged model of the reused engine"] = (", ".join(inputs), reused or _NOTHING)
    for model_id, numbers in (manifest.run.linked if manifest.run else {}).items():
        if (model := engines.get(model_id)) is not None:
            facts |= _pairs(f"logged model {model_id}", _numbers_of(model, run), _stated_numbers(numbers, run))
    if (model := engines.get(output_of(run) or "")) is None:
        return facts, []
    subject, unverified = f"logged model {model.model_id}", list[str]()
    facts |= _row_facts(run, files, model, subject)
    registered, interrupted = engines.versions_loading(model)
    facts |= _version_facts(connection, registered, model, subject)
    for name, number in sorted(interrupted):
        reason = f"its registration was interrupted: it has no alias, and {subject} does not list it"
        unverified.append(f"version {number} of {name!r}: {reason}")
    for run_id in {metric.run_id for metric in model.metrics or ()} - {run.info.run_id}:
        linked_facts, reason = _linked_facts(connection, run_id, model, subject)
        facts |= linked_facts
        unverified += [f"metrics of run {run_id} in {subject}: {reason}"] if reason else []
    return facts | _file_facts(files, engines.files_of(model), manifest, subject), unverified


def _dataset_facts(run: Any) -> Derived:
    stored = {}
    for dataset_input in run.inputs.dataset_inputs:
        dataset, contexts = dataset_input.dataset, [tag.value for tag in dataset_input.tags]
        stored[f"dataset {dataset.name}@{dataset.digest}"] = "; ".join([dataset.source_type, dataset.source, *contexts])
    stated = {}
    for (name, digest), context in datasets_of(run).items():
        stated[f"dataset {name}@{digest}"] = f"local; {dataset_source(name)}; {context}"
    return dict(_pairs("the run", stored, stated))


def _row_facts(run: Any, files: Files, model: Any, subject: str) -> Derived:
    """The columns, params, tags and the run's own metrics of a logged model."""
    stated, experiment = engine_model(run, files), run.info.artifact_uri.removesuffix(f"/{run.info.run_id}/artifacts")
    facts = {
        f"location of {subject}": (model.artifact_location, f"{experiment}/models/{model.model_id}/artifacts"),
        f"name of {subject}": (model.name, stated.name),
        f"status of {subject}": (str(model.status), stated.status),
        f"source run of {subject}": (str(model.source_run_id), run.info.run_id),
        f"model type of {subject}": (str(model.model_type), "engine"),
        f"experiment of {subject}": (model.experiment_id, run.info.experiment_id),
    }
    # Users may add tags of their own.
    ours = {name: value for name, value in model.tags.items() if name.startswith(_OUR_TAGS)}
    for kind, values, expected in (("param", model.params, stated.params), ("tag", ours, stated.tags)):
        facts |= {f"{kind} {fact}": pair for fact, pair in _pairs(subject, values, expected)}
    numbers = {name: (value,) for name, value in stated.metrics.items()}
    return facts | dict(_pairs(subject, _numbers_of(model, run), _stated_numbers(numbers, run)))


def _version_facts(connection: Connection, registered: set[tuple[str, str]], model: Any, subject: str) -> Derived:
    """The registered versions that load a logged model, those that it lists, and where MLflow loads each from."""
    listed = versions_of(model)
    facts = {f"registered versions of {subject}": (str(sorted(listed)), str(sorted(registered)))}
    for name, version in sorted(listed | registered):
        with contextlib.suppress(errors.RunNotFoundError):
            location = connection.call(connection.client.get_model_version_download_uri, name, version)
            facts[f"location of version {version} of {name!r}"] = (location, model.artifact_location)
    return facts


def _linked_facts(connection: Connection, run_id: str, model: Any, subject: str) -> tuple[Derived, str]:
    """The metrics of another run in a logged model and those that its manifest states, or why they are not verified."""
    run = None
    try:
        run = connection.call(connection.client.get_run, run_id)
        files = files_of(connection, run_id, run.info.artifact_uri)
        statement = read_manifest(run_id, files.peek(Artifact.MANIFEST)).run
    except (errors.RunNotFoundError, errors.IncompleteRunError) as exc:
        if run is not None and run.info.status != "FINISHED":  # at work, or its process was killed
            return {}, f"the run has the status {run.info.status} and no complete {Artifact.MANIFEST}"
        return {f"metrics of run {run_id} in {subject}": ("stored", str(exc))}, ""
    if statement is None or statement.resumed or statement.spooled:  # it may lack values
        return {}, ""
    numbers = _stated_numbers(statement.linked.get(model.model_id, {}), run)
    return dict(_pairs(subject, _numbers_of(model, run), numbers)), ""


def _file_facts(files: Files, model_files: Files, manifest: Manifest, subject: str) -> Derived:
    """The files of a logged model by digest; large ones may be missing behind a server."""
    facts, listed = Derived(), {_META_FILE}
    for entry in model_entries(manifest):
        listed.add(entry.path)
        file, run_file = model_files.get(entry), files.get(entry)
        if file is None and entry.size > MAX_COPIED_BYTES:
            continue
        if file is not None and run_file is not None and os.path.samefile(file, run_file):
            continue  # the run's file is compared with the manifest
        facts[f"{entry.path} of {subject}"] = (_NOTHING if file is None else sha256_file(file), entry.sha256)
    for path in (Artifact.MANIFEST, Artifact.SIGNATURE):
        listed.add(path)
        if model_files.peek(path) != files.peek(path):
            facts[f"{path} of {subject}"] = ("other content", "that of the run's file")
    for path in sorted({*model_files.paths()} - listed):
        facts[f"{path} of {subject}"] = ("a file", _NOTHING)
    return facts


def _stated_numbers(numbers: Mapping[str, Sequence[float]], run: Any) -> dict[str, str]:
    """Metrics that a run links to a logged model, with their data, as :func:`_numbers_of` has them."""
    data = " ".join(data_of(run.data.params).values()) or _NOTHING
    return {f"metric {name} by run {run.info.run_id}": f"{_text(numbers[name])} on {data}" for name in numbers}


def _numbers_of(model: Any, run: Any) -> dict[str, str]:
    """The metrics of a run in a logged model, with their data; those with a time outside the run's are marked."""
    rows: dict[tuple[str, str], list[float]] = {}
    start, end = run.info.start_time, (run.info.end_time or time.time() * 1000) + 1000
    for metric in sorted(model.metrics or (), key=lambda metric: metric.timestamp):
        if metric.run_id == run.info.run_id:
            data = " ".join(filter(None, (metric.dataset_name, metric.dataset_digest))) or _NOTHING
            mark = "" if start <= metric.timestamp <= end and metric.step == 0 else ", at another time or step"
            rows.setdefault((metric.key, data + mark), []).append(metric.value)
    numbers: dict[str, str] = {}
    for (key, data), values in rows.items():
        fact = f"metric {key} by run {run.info.run_id}"
        numbers[fact] = " and ".join(filter(None, (numbers.get(fact), f"{_text(values)} on {data}")))
    return numbers


def _text(values: Iterable[float]) -> str:
    # A database may store fewer digits than a float has.
    return ", ".join(f"{value:.12g}" for value in values)


def _pairs(subject: str, stored: Mapping[str, str], stated: Mapping[str, str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield each fact of two mappings with both values."""
    for name in sorted({*stored, *stated}):
        yield f"{name} of {subject}", (stored.get(name, _NOTHING), stated.get(name, _NOTHING))
