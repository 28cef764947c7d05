"""Import: results that other tools left become runs, which say what they lack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtops import errors
from trtops.ops.importing.found import Found
from trtops.ops.importing.readers import read_results
from trtops.ops.result import OpResult, op_run
from trtops.record import sha256_file
from trtops.tables import table
from trtops.tracking import schema
from trtops.tracking.base import Run, Tracker
from trtops.tracking.tables import log_table
from trtops.verdict import Verdict

_LARGEST_KEPT = 64 << 20


@dataclass(frozen=True, kw_only=True)
class ImportResult(OpResult):
    """What was imported.

    Attributes:
        found: The results, in the order of the files.
        runs: The run of each.
    """

    found: tuple[Found, ...]
    runs: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """``good``: what cannot be read is an error."""
        return "good"

    @property
    def headline(self) -> str:
        """How many runs there are now."""
        return f"{len(self.runs)} runs"

    def body(self) -> Iterator[str]:
        """A line for each run, and what each kind of result lacks."""
        rows = (
            (
                each.tool,
                each.what,
                each.name,
                each.verdict or "-",
                str(len(each.numbers)),
                str(len(each.layers)),
                run[:8],
            )
            for each, run in zip(self.found, self.runs)
        )
        yield from ("```", table(("tool", "what", "of", "verdict", "numbers", "layers", "run"), rows), "```", "")
        for kind, each in {(each.tool, each.what): each for each in self.found}.items():
            yield f"- {' '.join(kind)} lacks {'; '.join(each.lacks)}."


def import_results(
    files: Sequence[str | Path],
    *,
    tracker: Tracker,
    experiment: str | None = None,
    model_sha256: str | None = None,
    tags: Mapping[str, str] | None = None,
) -> ImportResult:
    """Make runs of what other tools left. All files are read before the first run is made.

    Args:
        files: trtexec's JSON, Polygraphy's results and replays, profiles of ONNX Runtime, Model Navigator's status, ModelOpt's
            ``hf_quant_config.json``.
        tracker: The memory.
        experiment: Experiment to log to; the file's name without its ending unless given.
        model_sha256: Digest of the model that they are of, by which runs of it are found.
        tags: Further tags of the runs.

    Raises:
        ConfigError: If a file is not there, or none is given.
        FormatError: If a file is of no kind that is known, is damaged, or holds pickled objects.
    """
    if not files:
        raise errors.ConfigError("No file is given; expected results of other tools.")
    read = [(Path(file), found) for file in files for found in read_results(file)]
    runs = []
    for file, found in read:
        name = f"{found.tool} {found.what} {found.name}"
        more = dict(tags or {}) | ({schema.Tag.MODEL_SHA256: model_sha256} if model_sha256 else {})
        with op_run(tracker, experiment or file.stem, name, kind="imported", tags=more) as run:
            _log_found(run, file, found)
            run.finish("good" if found.verdict == "good" else "bad" if found.verdict == "bad" else None)
            runs.append(run)
    result = ImportResult(
        title=f"import {', '.join(Path(file).name for file in files)}",
        found=tuple(found for _, found in read),
        runs=tuple(run.id for run in runs),
    )
    return replace(result, experiment=experiment or read[0][0].stem, run_id=runs[0].id, url=runs[0].url)


def _log_found(run: Run, file: Path, found: Found) -> None:
    run.set_tags({schema.Tag.IMPORTED_FROM: found.tool, schema.Tag.NOTE: _note(found)[: schema.MAX_TAG]})
    run.log_params(
        {"tool": found.tool, "what": found.what, "file": file.name, "sha256": sha256_file(file), **dict(found.notes)}
    )
    if found.numbers:
        run.log_metrics({tuple(name.split("/")): value for name, value in found.numbers})
    run.log_json(found, schema.Artifact.IMPORTED_RESULT)
    if file.stat().st_size <= _LARGEST_KEPT:
        run.log_file(file, f"{schema.Artifact.IMPORTED}{file.name}")
    if found.layers:
        rows = ([layer.name, layer.op, layer.ms, layer.share, layer.precision, layer.tactic] for layer in found.layers)
        log_table(
            run, f"{schema.Artifact.IMPORTED}layers.json", ("layer", "op", "ms", "share", "precision", "tactic"), rows
        )


def _note(found: Found) -> str:
    lines = [f"Imported from {found.tool} ({found.what}).", "", "It lacks:", *(f"- {each}" for each in found.lacks)]
    slowest = sorted((layer for layer in found.layers if layer.ms is not None), key=lambda layer: -(layer.ms or 0.0))[
        :10
    ]
    return "\n".join([*lines, "", *(f"- {layer.ms:.4g} ms {layer.op} `{layer.name}`" for layer in slowest)])
