"""Gate several candidates: every combination of models, precisions and releases, in one table."""

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

from trtops import errors
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model
from trtops.backend.torch import is_torch_model, model_name, model_stem
from trtops.ops.arguments import checked_arguments
from trtops.ops.evaluation.torch_models import exported_model
from trtops.ops.gate.across_releases import Candidate, Regression, accepted_candidates, explain
from trtops.ops.gate.distribution import gate_builds
from trtops.ops.gate.findings import Finding
from trtops.ops.gate.op import gate, registered
from trtops.ops.gate.policy import GateConfig
from trtops.ops.gate.releases import name_of
from trtops.ops.gate.result import DECIDED, EXIT_CODES, GateResult
from trtops.ops.result import OnProgress, OpResult, model_file, op_run, run_step, tracker_or_default
from trtops.reports.document import Section, Table
from trtops.spec import Precision
from trtops.system.worker import kept_workers
from trtops.tracking import schema
from trtops.tracking.base import Tracker, Verdict

_MATRIX_COLUMNS = (
    "model", "precision", "release", "decision", "latency ratio", "widths", "size ratio", "seconds", "run",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class MatrixResult(OpResult):
    """The results of all candidates, by model, then precision, then release; and why accepted engines break."""

    title: str = "gate matrix"
    cells: tuple[GateResult, ...]
    regressions: tuple[Regression, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """``bad`` if a candidate was refused, ``error`` if one is undecided, ``unproven`` if one is, else ``good``."""
        order: tuple[Verdict, ...] = ("bad", "error", "unproven", "good")
        return min((cell.verdict for cell in self.cells), key=order.index, default="good")

    @property
    def exit_code(self) -> int:
        """1 if a candidate was refused, 3 after an error, 4 if one is undecided, else 0."""
        return {"good": 0, "bad": 1, "unproven": EXIT_CODES["undecided"]}.get(self.verdict, EXIT_CODES["error"])

    @property
    def headline(self) -> str:
        """The number of candidates by decision, and the names of those not accepted."""
        counts = Counter(cell.decision for cell in self.cells)
        text = ", ".join(f"{counts[decision]} {words}" for decision, words in DECIDED.items() if counts[decision])
        names = dict.fromkeys(model_stem(cell.subject) for cell in self._not_accepted)
        return (f"{text}: {', '.join(names)}" if names else text) or "no candidates"

    @property
    def _not_accepted(self) -> list[GateResult]:
        return [cell for cell in self.cells if cell.decision != "accept"]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Each candidate not accepted, with its reasons."""
        return tuple(
            f"{model_stem(cell.subject)} {cell.precision} {cell.release}: {cell.decision}. {'; '.join(cell.reasons)}"
            for cell in self._not_accepted
        )

    def rows(self) -> Iterable[tuple[str | float | None, ...]]:
        """Rows of the table."""
        for cell in self.cells:
            metrics, family = cell.metrics(), schema.Metric.GATE
            widths = max((value for name, value in metrics.items() if name[1] == "widths"), default=None)
            ratios = metrics.get((family, "latency_ratio")), widths, metrics.get((family, "size_ratio"))
            names = model_stem(cell.subject), cell.precision, cell.release, cell.decision
            yield (*names, *ratios, cell.seconds, cell.run_id)

    def overview(self) -> Table:
        """Return the decision on each candidate, those that are not accepted first."""
        columns = ("model", "precision", "release", "decision", "run")
        cells = sorted(self.cells, key=lambda cell: cell.decision == "accept")
        rows = [(model_stem(c.subject), c.precision, c.release, DECIDED[c.decision], c.run_id[:8]) for c in cells]
        return Table(columns=columns, rows=tuple(rows))

    def sections(self) -> Iterable[Section]:
        """What broke, and a table of all candidates."""
        for regression in self.regressions:
            answers = {**vars(regression)}
            title = answers.pop("engine")
            lines = [f"- {name.replace('_', ' ')}: {text}" for name, text in answers.items()]
            yield Section(title=title, text="\n".join(lines))
        yield Section(table=Table(columns=_MATRIX_COLUMNS, rows=tuple(self.rows())))


@checked_arguments
@kept_workers()
def gate_all(
    models: Sequence[str | Path | Model],
    config: GateConfig = GateConfig(),
    *,
    releases: Sequence[str] = (),
    precisions: Sequence[Precision] = (),
    kernel: str = "",
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    progress: OnProgress | None = None,
) -> GateResult | MatrixResult:
    """Gate every combination, one after the other; several of them in child runs, with one table.

    Without models, each accepted engine of the store (with a ``kernel``, each that contains it) is built with the
    newest of the releases, which are ordered from the oldest; of those that are refused, the result has the cause.
    Nothing is registered then. ``config`` has the release and the precision, unless ``releases`` or ``precisions`` are
    given. All candidates are compared with the engines that were accepted before the first of them.
    """
    tracker = tracker_or_default(tracker)
    releases = tuple(releases) or (config.release,)
    names = [name_of(release) for release in releases]
    # The name is all that tells the rows of two releases apart.
    if len({*names}) < len(releases):
        raise errors.ConfigError(f"Two releases have the same name ({', '.join(names)}); give each file its own.")
    gate_one = gate if config.distribution.builds == 1 else gate_builds

    @functools.cache
    def exported(index: int) -> tuple[str | Path | Model, GateConfig]:
        """A model and its config; a PyTorch model is exported and checked once."""
        return exported_model(models[index], config) if is_torch_model(models[index]) else (models[index], config)

    def combined(index: int, precision: Precision, release: str) -> tuple[str | Path | Model, GateConfig]:
        model, opened = exported(index)
        return model, replace(opened, build=replace(opened.build, precision=precision), release=release)

    combinations = [*product(range(len(models)), precisions or (config.build.precision,), releases)]
    if len(combinations) == 1:
        model, gate_config = combined(*combinations[0])
        if not gate_config.release and getattr(gate_config.build.options, "on_gpu", False):
            engine_backend(gate_config.build.backend).environment(gate_config.build)  # a missing device leaves no run
        return run_step("gate", gate_one, model, gate_config, tracker=tracker, experiment=experiment, tags=tags)
    if config.candidate is not None:
        raise errors.ConfigError(f"candidate is one run, but there are {len(combinations)} combinations; expected one.")
    experiment = experiment or "gate"
    with op_run(tracker, experiment, "gate matrix", kind="gate_matrix", tags=tags) as op:
        run = op.run
        run.log_params({"models": list(map(model_name, models)), "releases": names})
        where = {"tracker": tracker, "experiment": experiment, "tags": tags, "parent": run.id}
        # Registered at the end: otherwise a later candidate would be compared with an earlier one.
        config, is_registering = replace(config, register=False), config.register and bool(models)
        results, regressions = list[GateResult](), list[Regression]()
        candidates: list[tuple[str, Candidate]] = [
            (model_name(models[combination[0]]), partial(combined, *combination)) for combination in combinations
        ]
        candidates = candidates or [*accepted_candidates(config, releases, tracker, kernel)]
        for subject, opened in candidates:
            gate_config, label = replace(config, release=releases[-1]), ""
            try:
                model, gate_config = opened()
                label = f"gate {model_file(model).stem} {gate_config.build.precision} {name_of(gate_config.release)}"
                gate_config = replace(gate_config, register=False, others=(*gate_config.others, *releases))
                result = run_step(label, gate_one, model, gate_config, **where)  # type: ignore[arg-type]
                if not models and result.decision == "refuse":
                    cause = explain(subject, model_file(model), gate_config, result, releases, where)
                    regressions += [] if cause is None else [cause]
            except errors.TrtopsError as exc:  # an unreadable model only ends its own combinations
                result = GateResult(
                    title=label or f"gate {subject}",
                    subject=subject,
                    findings=(Finding("gate", "error", f"{type(exc).__name__}: {exc}"),),
                    policy=gate_config.policy,
                    precision=gate_config.build.precision,
                    release=name_of(gate_config.release),
                )
            results.append(result)
            if progress is not None:
                progress(len(results), len(candidates))
        cells = tuple(registered(result, replace(config, register=is_registering), tracker) for result in results)
        matrix = MatrixResult(cells=cells, regressions=tuple(regressions))
        run.log_table(schema.Artifact.GATE_TABLE, _MATRIX_COLUMNS, (list(row) for row in matrix.rows()))
        counts = Counter(result.decision for result in cells)
        run.log_metrics({(schema.Metric.GATE, decision): float(count) for decision, count in counts.items()})
        return op.finish(matrix, artifact=schema.Artifact.GATE)
