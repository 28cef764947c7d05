"""Gate several candidates: every combination of models, precisions and releases, in one table."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from trtops import errors
from trtops.ops.gate.distribution import gate_builds
from trtops.ops.gate.op import GateConfig, gate, registered
from trtops.ops.gate.releases import Release
from trtops.ops.gate.result import DECIDED, EXIT_CODES, Finding, GateResult
from trtops.ops.result import OnProgress, OpResult, finish_with, op_run, run_step
from trtops.reports.document import Section, Table
from trtops.spec import Precision
from trtops.tracking import schema
from trtops.tracking.base import Tracker, Verdict

_COLUMNS = ("model", "precision", "release", "decision", "latency ratio", "widths", "size ratio", "seconds", "run")


@dataclass(frozen=True, kw_only=True)
class MatrixResult(OpResult):
    """The results of all candidates, by model, then precision, then release."""

    title: str = "gate matrix"
    cells: tuple[GateResult, ...]

    @property
    def verdict(self) -> Verdict:
        """``bad`` if a candidate was refused, ``error`` if one is undecided, ``unproven`` if one is, else ``good``."""
        verdicts = {cell.verdict for cell in self.cells}
        order: tuple[Verdict, ...] = ("bad", "error", "unproven")
        return next((verdict for verdict in order if verdict in verdicts), "good")

    @property
    def exit_code(self) -> int:
        """1 if a candidate was refused, 3 after an error, 4 if one is undecided, else 0."""
        return {"good": 0, "bad": 1, "unproven": EXIT_CODES["undecided"]}.get(self.verdict, EXIT_CODES["error"])

    @property
    def headline(self) -> str:
        """The number of candidates by decision."""
        counts = Counter(cell.decision for cell in self.cells)
        return ", ".join(f"{counts[each]} {words}" for each, words in DECIDED.items() if counts[each])

    def rows(self) -> Iterable[tuple[str | float | None, ...]]:
        """Rows of the table."""
        for cell in self.cells:
            metrics, family = cell.metrics(), schema.Metric.GATE
            widths = max((value for name, value in metrics.items() if name[1] == "widths"), default=None)
            yield (
                *(Path(cell.subject).stem, cell.precision, cell.release, cell.decision),
                *(metrics.get((family, "latency_ratio")), widths, metrics.get((family, "size_ratio"))),
                *(cell.seconds, cell.run_id),
            )

    def sections(self) -> Iterable[Section]:
        """Candidates that were not accepted, with reasons; then a table of all."""
        lines = [
            f"- **{Path(cell.subject).stem} {cell.precision} {cell.release}**: {cell.decision}. "
            f"{'; '.join(cell.reasons)}"
            for cell in self.cells
            if cell.decision != "accept"
        ]
        yield Section(text="\n".join(lines), table=Table(columns=_COLUMNS, rows=tuple(self.rows())))


def gate_all(
    models: Sequence[str | Path],
    config: GateConfig = GateConfig(),
    *,
    releases: Sequence[Release] = (),
    precisions: Sequence[Precision] = (),
    tracker: Tracker,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    progress: OnProgress | None = None,
) -> GateResult | MatrixResult:
    """Gate every combination, one after the other; several of them in child runs, with one table.

    Without models, the accepted engines of the store are gated (:func:`trtops.ops.gate.across_releases.gate_releases`).
    ``config`` has the release and the precision, unless ``releases`` or ``precisions`` are given. All candidates are
    compared with the engines that were accepted before the first of them.
    """
    releases = tuple(releases) or (config.release,)
    # The name is all that tells the rows of two releases apart.
    if len({release.name for release in releases}) < len(releases):
        raise errors.ConfigError("Two releases have the same name; give each its own (name=path).")
    if not models:
        from trtops.ops.gate.across_releases import gate_releases  # its result extends the one of this module

        experiment = experiment or "gate"
        return gate_releases(releases, config, tracker=tracker, experiment=experiment, tags=tags, progress=progress)
    candidates = [
        (model, replace(config, build=replace(config.build, precision=precision), release=release))
        for model, precision, release in product(models, precisions or (config.build.precision,), releases)
    ]
    gate_one = gate if config.distribution.builds == 1 else gate_builds
    if len(candidates) == 1:
        [(model, own)] = candidates
        return run_step("gate", gate_one, model, own, tracker=tracker, experiment=experiment, tags=tags)
    if config.candidate is not None:
        raise errors.ConfigError(f"candidate is one run, but there are {len(candidates)} combinations; expected one.")
    experiment = experiment or "gate"
    with op_run(tracker, experiment, "gate matrix", kind="gate_matrix", tags=tags) as run:
        run.log_params({"models": list(map(str, models)), "releases": [r.name for r in releases]})
        results: list[GateResult] = []
        for model, own in candidates:
            # Registered at the end: otherwise a later candidate would be compared with an earlier one.
            own = replace(own, register=False, others=(*config.others, *releases))
            name = f"gate {Path(model).stem} {own.build.precision} {own.release.name}"
            where = {"tracker": tracker, "experiment": experiment, "tags": tags, "parent": run.id}
            try:
                result = run_step(name, gate_one, model, own, **where)  # type: ignore[arg-type]
            except errors.TrtopsError as exc:  # an unreadable model only ends its own combinations
                result = GateResult(
                    title=name,
                    subject=str(model),
                    findings=(Finding("gate", "error", f"{type(exc).__name__}: {exc}"),),
                    policy=own.policy,
                    precision=own.build.precision,
                    release=own.release.name,
                )
            results.append(result)
            if progress is not None:
                progress(len(results), len(candidates))
        cells = tuple(registered(result, config, tracker) for result in results)
        matrix = MatrixResult(cells=cells).kept_in(run, experiment)
        run.log_table(schema.Artifact.GATE_TABLE, _COLUMNS, (list(row) for row in matrix.rows()))
        counts = Counter(result.decision for result in cells)
        run.log_metrics({(schema.Metric.GATE, decision): float(count) for decision, count in counts.items()})
        finish_with(run, matrix, tracker, artifact=schema.Artifact.GATE, page=schema.Artifact.GATE_PAGE)
    return matrix
