"""Reduce: find the smallest failing part of a model, and save it as a model of its own.

Sub-models are cut out of the model and checked. Each gets as inputs the values that flow there in the whole model,
observed once at the beginning. The search works on *parts* of the model, numbered in execution order
(:attr:`trtops.backend.onnx.submodel.Cutter.parts`), mostly single nodes. Its stages:

* *halves*: a stretch of parts that fails while neither of its halves does. A single wrong node is found here.
* *outputs*: the shortest beginning of that stretch that fails. Its last part is needed.
* *inputs*: the shortest end of what is left that fails.
* *nodes*: delta debugging over the rest, until no single part can be left out.
"""

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import onnx

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.engines import engine_backend
from trtops.backend.onnx.model import Model, is_large
from trtops.backend.onnx.save import save_model
from trtops.backend.onnx.submodel import Cutter, Declared, SubModel, Values
from trtops.backend.onnxrt.observe import observe
from trtops.comparator.report import Tolerances
from trtops.json import save_json
from trtops.metadata import TensorMetadata, check_feed
from trtops.next_step import NextStep
from trtops.ops.arguments import checked_arguments
from trtops.ops.evaluation.data import DataConfig, Feeds, naming_assumed
from trtops.ops.evaluation.limits import tolerances_for
from trtops.ops.model.model_files import SaveConfig, Source
from trtops.ops.result import OpResult, run_step
from trtops.ops.search.delta import Items, OutOfTestsError, Search, Step
from trtops.ops.search.search_run import search_run
from trtops.ops.search.submodel import Check, CheckOutcome, CheckVerdict, ComparisonCheck, EngineRunner, describe
from trtops.record import Record, setting
from trtops.spec import BuildConfig
from trtops.system.processes import temporary_prefix
from trtops.tables import counted, listed
from trtops.terminal import one_line
from trtops.tracking import schema
from trtops.tracking.base import NO_RUN, Run, Tracker
from trtops.verdict import Verdict

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ReduceConfig(DataConfig):
    """How to reduce a model, and the data of the whole model.

    Attributes:
        mode: ``bisect`` checks ``log2(nodes)`` sub-models in each stage but the last. ``linear`` checks one after the
            other from the smallest, and so also finds failures that larger sub-models hide.
        max_checks: Maximum number of checks; the result is then the smallest failing sub-model so far.
        reduce_outputs: Whether nodes may be removed at the end of the model. Otherwise its outputs stay.
        reduce_inputs: Whether nodes may be removed at the beginning. Otherwise its inputs stay.
        inputs: Inputs of sub-models: ``real`` values as observed in the whole model, or ``declared`` types and shapes
            without data, also used if the model does not run on random data.
        output: File for the reduced model. Its inputs are saved next to it as ``<name>_inputs.json``.
        save_as: Where the weights of these models go.
        min_good: File for the passing sub-model that is closest in size to the culprit.
        load_replay: The debug replay of a search that was killed or interrupted. Its answers are not checked again.
        save_replay: File for a debug replay, written after each check.
    """

    mode: Literal["bisect", "linear"] = "bisect"
    max_checks: int | None = setting(None, least=1)
    reduce_outputs: bool = True
    reduce_inputs: bool = True
    inputs: Literal["real", "declared"] = "real"
    iterations: int = setting(1, least=1)  # each costs an inference per check
    output: str | None = setting(None, file="writes")
    save_as: SaveConfig = field(default_factory=SaveConfig)
    min_good: str | None = setting(None, file="writes")
    load_replay: str | None = setting(None, file="reads")
    save_replay: str | None = setting(None, file="writes", continues="load_replay")

    def __post_init__(self) -> None:
        if not (self.reduce_outputs or self.reduce_inputs):
            raise errors.ConfigError(
                "reduce_outputs and reduce_inputs are both False; expected one of them to be True."
            )


@dataclass(frozen=True, kw_only=True)
class CulpritNode(Record):
    """One node of a culprit, with its index in the whole model's ``graph.node``."""

    index: int
    name: str
    op: str
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Culprit(Record):
    """A smallest failing sub-model."""

    nodes: tuple[CulpritNode, ...]
    # Whether every set without one node was checked and passes; False if ``max_checks`` stopped the search. If only
    # outputs or only inputs are reduced, this concerns nodes at the end or at the beginning.
    minimal: bool = True
    detail: str = ""
    path: str | None = None
    inputs_path: str | None = None
    _proto: Any = field(default=None, repr=False, compare=False)

    @property
    def model(self) -> onnx.ModelProto:
        """The sub-model; :attr:`path` is its file after reading from JSON, without its content."""
        assert self._proto is not None
        proto: onnx.ModelProto = self._proto
        return proto

    @property
    def labels(self) -> tuple[str, ...]:
        """Operator and name of each node."""
        return tuple(f"{n.op} {n.name or next(filter(None, n.outputs), '')!r}" for n in self.nodes)


@dataclass(frozen=True, kw_only=True)
class ReduceResult(OpResult):
    """The result of a reduction: ``bad`` with a culprit if the model fails."""

    verdict: Verdict
    whole: CheckVerdict = "pass"  # of the whole model; "error" for another failure than the one searched for
    culprit: Culprit | None = None  # None if the model does not fail
    nodes: int  # in the whole model, without Constants
    checks: int
    resumed: int = 0  # answers taken from a replay
    seconds: float = 0.0
    detail: str = ""  # how the whole model fails, or why it does not

    @property
    def next_step(self) -> NextStep | None:
        """Inspect the failing part, if it was saved."""
        if not (self.run_id and self.culprit and self.culprit.path):
            return super().next_step
        return NextStep("inspect model", {"model": self.culprit.path, "show": "layers"})

    @property
    def because(self) -> tuple[str, ...]:
        """The smallest failing part, and how it fails."""
        if self.whole == "error":
            return (f"The whole model fails in another way than the one searched for: {' '.join(self.detail.split())}",)
        if (culprit := self.culprit) is None:
            return ("The model does not fail",)
        nodes = f"{len(culprit.nodes)} of {self.nodes} nodes still fail: {listed(culprit.labels)}"
        return (nodes, *filter(None, [" ".join(culprit.detail.split())]))  # what a command printed, in one line

    @property
    def figures(self) -> str:
        """The files of the part, and the checks."""
        checks = f"{counted(self.checks, 'check')} in {self.seconds:.1f} s"
        if self.culprit is None or self.culprit.path is None:
            return checks
        inputs = f", its inputs in {self.culprit.inputs_path}" if self.culprit.inputs_path else ""
        return f"saved to {self.culprit.path}{inputs}; {checks}"

    def body(self) -> Iterator[str]:
        """The findings and the figures."""
        yield from (f"- {one_line(line)}" for line in (*self.because, self.figures))


def engine_check(build: BuildConfig, tolerances: Tolerances | None = None) -> ComparisonCheck:
    """A check with an engine built for each part, and its outputs compared with the values of the whole model."""
    engine_backend(build.backend).environment(build)
    return ComparisonCheck(runner=EngineRunner(build), tolerances=tolerances_for(build.precision, tolerances))


@checked_arguments
def reduce(
    model: Source,
    check: Check,
    config: ReduceConfig = ReduceConfig(),
    *,
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
    file: str | Path | None = None,
    progress: Callable[[Step], None] | None = None,
) -> ReduceResult:
    """Find the smallest part of a model with the same failure.

    ``check`` says whether a sub-model passes (:mod:`trtops.ops.search.submodel`): a callable, a comparison as
    :func:`engine_check` makes it, or a :class:`~trtops.ops.search.command.CommandCheck`. ``file`` names a
    model in memory. ``progress`` is called after each check.
    ConfigError if the replay belongs to another search, or an output path is the model's own. Any exception of the
    check on the whole model passes through; on a part it counts as another failure.

    >>> def has_no_relu(part):
    ...     return all(node.op_type != "Relu" for node in part.proto.graph.node)
    >>> result = trtops.reduce("model.onnx", has_no_relu)
    >>> len(result.culprit.nodes), result.culprit.nodes[0].op
    (1, 'Relu')
    """
    with search_run("reduce", model, file, tracker=tracker, experiment=experiment, tags=tags, parent=parent) as search:
        result, steps = run_step("search", _find_culprit, search.model, check, config, progress)
        result = replace(result, seconds=search.seconds)
        search.op.run.log_params({"model": search.model.name, "check": describe(check), **config.to_dict()})
        if search.op.run is not NO_RUN:
            _log_files(search.op.run, result, steps)
        numbers = {"nodes": result.nodes, "checks": result.checks, "seconds": result.seconds}
        numbers["culprit_nodes"] = len(result.culprit.nodes) if result.culprit else 0
        return search.finish(result, schema.Metric.REDUCE, numbers, schema.Artifact.REDUCE_RESULT)


def _find_culprit(
    model: Model,
    check: Check,
    config: ReduceConfig,
    progress: Callable[[Step], None] | None,
) -> tuple[ReduceResult, Sequence[Step]]:
    cutter = Cutter(model.proto(lean=True))
    if not cutter.parts:
        raise errors.InvalidModelError("The model has no nodes but Constants; there is nothing to reduce.")
    inputs = TensorMetadata.of(model.info.inputs)
    for name, shape in config.input_shapes.items():
        if name not in inputs:
            raise errors.InputError(f"input_shapes has {name!r}. {errors.near(name, inputs)}")
        inputs[name] = replace(inputs[name], shape=tuple(shape))
    source: Iterable[Feed] = ()
    if config.inputs == "real":
        source = config.open_for(model, inputs=inputs) if inputs else [{}]
    samples: list[Feed] = []
    for feed in source:
        check_feed(inputs, feed)
        samples.append(dict(feed))
    # As in Polygraphy, tensors of other branches become weights only if the user gives data.
    freeze = config.inputs == "real" and config.data is not None
    data = f"{config.inputs}, branches {'frozen' if freeze else 'inputs'}"
    if samples:
        # Arrays of objects have no bytes of their own; their text has.
        plain = [{n: a.astype(str) if a.dtype.kind == "O" else a for n, a in feed.items()} for feed in samples]
        data += f" {Feeds('', lambda: plain).digest()}"
    with ExitStack() as stack:
        values: Values
        try:
            values = Declared(cutter.model, inputs) if config.inputs == "declared" else observe(cutter, samples)
            stack.callback(getattr(values, "close", int))
        except (errors.BackendError, errors.InvalidModelError) as exc:
            if freeze or isinstance(check, ComparisonCheck):  # which need its values
                with naming_assumed(model, source):
                    raise
            log.warning("The model does not run on random data, so parts have the declared shapes. %s", exc)
            config, values = replace(config, inputs="declared"), Declared(cutter.model, inputs)
        reduction = _Reduction(cutter, values, check, config, freeze, progress)
        depends_on = {"model": model.info.sha256, "check": describe(check), "data": data}
        reduction.search.use_replays(config.load_replay, config.save_replay, len(cutter.parts), depends_on)
        return reduction.run(), reduction.search.steps


@dataclass
class _Reduction:
    """One reduction under way: the sub-models to check, their order, and the one to save."""

    cutter: Cutter
    values: Values
    check: Check
    config: ReduceConfig
    freeze: bool
    progress: Callable[[Step], None] | None

    def __post_init__(self) -> None:
        self.everything = frozenset(range(len(self.cutter.parts)))
        self.minimal = True
        self.search = Search(
            self._check_part,
            holds_if="fail",
            max_tests=self.config.max_checks,
            size=lambda parts: len(self.nodes(parts)),
            progress=self.progress,
        )

    def nodes(self, parts: Iterable[int]) -> frozenset[int]:
        """Indices of the nodes in some parts."""
        return frozenset(chain.from_iterable(self.cutter.parts[part] for part in parts))

    def cut(self, parts: Items) -> SubModel:
        """The sub-model of some parts."""
        return self.cutter.cut(self.nodes(parts), self.values, freeze_branches=self.freeze)

    def _check_part(self, parts: Items) -> CheckOutcome:
        try:
            return CheckOutcome.of(self.check(self.cut(parts)))
        except (errors.ConfigError, errors.ScriptError):  # other parts would meet it too
            raise
        except Exception as exc:  # of a part it is an error of another kind than the one searched for
            if parts == self.everything:
                raise
            return CheckOutcome(verdict="error", detail=f"{type(exc).__name__}: {exc}")

    def run(self) -> ReduceResult:
        """Check the whole model; if it fails, find and save a smallest failing part."""
        search, config = self.search, self.config
        try:
            # The whole model first: without its failure there is nothing to search for.
            search.holds(self.everything)
            whole = search.answers[self.everything]
            culprit_parts = self.culprit() if whole.verdict == "fail" else None
        except BaseException:
            if config.save_replay is not None and search.steps:
                log.warning(
                    "Interrupted after %d answers, which are kept in %s. To resume, load it (--load-debug-replay).",
                    len(search.steps),
                    config.save_replay,
                )
            raise
        if whole.verdict == "error" and config.save_replay is not None:
            Path(config.save_replay).unlink(missing_ok=True)  # its one answer would stop the next search as well
        # A check that passes nothing, such as a misspelled command, would make any node the culprit.
        passing = [parts for parts, step in search.answers.items() if step.verdict == "pass"]
        if culprit_parts and not passing:
            log.warning(
                "The check passed nothing, so it may be broken. Run it on a correct model. Its output: %s",
                whole.detail.strip() or "none",
            )
        if config.min_good is not None and culprit_parts and passing:
            size = len(self.nodes(culprit_parts))
            closest = min(passing, key=lambda parts: (abs(len(self.nodes(parts)) - size), sorted(parts)))
            save_model(self.cut(closest).proto, config.min_good, **config.save_as.for_another())
        return ReduceResult(
            verdict="bad" if culprit_parts else "good",
            whole=whole.verdict,
            culprit=None if culprit_parts is None else self.save(culprit_parts),
            nodes=len(self.cutter.order),
            checks=search.tests,
            resumed=search.resumed,
            detail=whole.detail or ("" if culprit_parts else "the whole model passes"),
        )

    def culprit(self) -> Items:
        """A smallest failing set of parts of a failing model."""
        try:
            return self._smallest(self.everything)
        except OutOfTestsError:
            log.warning("Stopped after %d checks; a smaller culprit may exist.", self.search.tests)
            self.minimal = False
            return self.search.smallest_so_far()

    def _smallest(self, within: Items) -> Items:
        """One smallest failing set within a failing set."""
        parts = sorted(within)
        if not self.config.reduce_inputs:
            return self._without_ends(frozenset(self._shortest_beginning(parts)))
        if not self.config.reduce_outputs:
            return self._without_ends(frozenset(self._shortest_end(parts)))
        self.search.stage = "halves"
        low, high = 0, len(parts)
        if self.config.mode == "bisect":
            low, high = self.search.halve(parts)
        elif single := next((frozenset([part]) for part in parts if self.search.holds([part])), None):
            return single
        stretch = self._shortest_end(self._shortest_beginning(parts[low:high]))
        self.search.stage = "nodes"
        smallest = frozenset(self.search.smallest(stretch))
        if len(smallest) == 1:
            return smallest
        # A long stretch can fail because of errors that add up along it, such as rounding, next to a smaller culprit.
        others = [self._smallest(frozenset(side)) for side in (parts[:low], parts[high:]) if self.search.holds(side)]
        return min([smallest, *others], key=len)

    def _shortest_beginning(self, parts: list[int]) -> list[int]:
        """The shortest failing beginning, or only the nodes needed by its last part, if those fail too."""
        self.search.stage = "outputs"
        beginning = parts[: self.search.least(lambda length: parts[:length], len(parts), self.config.mode)]
        owner: dict[int, int] = {}
        for part in beginning:
            owner |= dict.fromkeys(self.cutter.parts[part], part)
        ancestors = chain.from_iterable(self.cutter.ancestors(i, owner) for i in self.cutter.parts[beginning[-1]])
        needed = sorted({owner[i] for i in ancestors})
        return needed if len(needed) < len(beginning) and self.search.holds(needed) else beginning

    def _shortest_end(self, parts: list[int]) -> list[int]:
        self.search.stage = "inputs"
        count = len(parts)
        return parts[count - self.search.least(lambda length: parts[count - length :], count, self.config.mode) :]

    def _without_ends(self, parts: Items) -> Items:
        """Leave out parts one by one at the reducible end, the latest first, until none can be left out."""
        self.search.stage = "nodes"
        while True:
            members = {part: self.cutter.parts[part] for part in parts}
            maker: dict[str, int] = {}
            for part, nodes in members.items():
                maker |= dict.fromkeys(chain.from_iterable(map(self.cutter.makes, nodes)), part)
            inner: set[int] = set()
            for part, nodes in members.items():
                reads = chain.from_iterable(map(self.cutter.reads, nodes))
                needed = {maker[name] for name in reads if maker.get(name, part) != part}
                inner |= needed if self.config.reduce_outputs else {part} if needed else set()
            ends = sorted(parts - inner, reverse=True)
            shorter = next((parts - {end} for end in ends if self.search.holds(parts - {end})), None)
            if shorter is None:
                return parts
            parts = shorter

    def save(self, parts: Items) -> Culprit:
        """The culprit, with model and inputs saved to the paths of the config."""
        cut, config = self.cut(parts), self.config
        path = inputs_path = None
        if config.output is not None:
            path = Path(config.output)
            save_model(cut.proto, path, **config.save_as.to_options())
            if config.inputs != "declared":
                inputs_path = path.with_name(f"{path.stem}_inputs.json")
                save_json(cut.feeds, inputs_path, "inputs of the reduced model")
        nodes = ((index, self.cutter.model.graph.node[index]) for index in cut.nodes)
        return Culprit(
            nodes=tuple(CulpritNode(index=i, name=n.name, op=n.op_type, outputs=tuple(n.output)) for i, n in nodes),
            minimal=self.minimal,
            detail=self.search.answers[parts].detail,
            path=None if path is None else str(path),
            inputs_path=None if inputs_path is None else str(inputs_path),
            _proto=cut.proto,
        )


def _log_files(run: Run, result: ReduceResult, steps: Iterable[Step]) -> None:
    """Log every step, and the culprit as a model."""
    run.log_text("".join(f"{step.to_json(indent=None)}\n" for step in steps), schema.Artifact.REDUCE_STEPS)
    if (culprit := result.culprit) is None:
        return
    # Logged as well as saved: the run is to be complete without files of this machine.
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("reduce")) as folder:
        path = Path(folder, "culprit.onnx")
        save_model(culprit.model, path, external_data_path="" if is_large(culprit.model) else None)
        for file in sorted(Path(folder).iterdir()):
            run.log_file(file, f"{schema.Artifact.REDUCE}{file.name}")
