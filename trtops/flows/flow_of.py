"""Make a Prefect flow from an op: its parameters are those of the op and the options of the op's config."""

import contextlib
import functools
import inspect
import logging
import platform
import re
import textwrap
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeAlias, TypeVar, Union, get_args, get_origin

import prefect.context
import pydantic
from prefect import Flow, Task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.events import emit_event
from prefect.exceptions import ParameterTypeError
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.states import Completed, Failed
from prefect.utilities.callables import get_call_parameters, parameter_docstrings
from prefect.utilities.urls import url_for

from trtops import errors
from trtops.backend.torch import is_torch_model, model_stem
from trtops.flows.slots import device_slot, has_server, in_flow
from trtops.logger import mask_log_records
from trtops.next_step import NextStep
from trtops.ops.arguments import parameter_type
from trtops.ops.devices import BuildPlace
from trtops.ops.keywords import (
    PYTHON_ONLY,
    config_class_of,
    configured,
    leading_options,
    option_keywords,
    takes_backend,
)  # fmt: skip
from trtops.ops.result import OpResult, steps_run_by
from trtops.record import OptionField, Record
from trtops.reports.description import code, without_links
from trtops.spec import BackendName
from trtops.system.activity import mark_op
from trtops.system.masking import masked, masked_json
from trtops.tables import listed
from trtops.tracking import schema
from trtops.tracking.check import reap
from trtops.tracking.offline import OfflineTracker
from trtops.tracking.store import default_tracker
from trtops.verdict import PASSED, VERDICTS, Verdict

mask_log_records()  # Prefect sends them to its server
log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

# Names the place that an op builds at, or the back end that it uses in this process, from tracker, config and
# arguments. A GPU of it is held while the op runs. None: the op needs no GPU, or its tasks hold theirs.
PlaceOf: TypeAlias = Callable[[OfflineTracker, Any, Mapping[str, Any]], "BuildPlace | BackendName | None"]

# Descriptions of parameters in forms, unless the docstring of the op lists its own.
_SHARED = {
    "model": "The ONNX file, or a PyTorch model: script.py:function, or a .pt2 program.",
    "models": "The models, or patterns such as models/*.onnx.",
    "engine": "The engine's file, or a folder of engines.",
    "experiment": "MLflow experiment (default: the name of the model or list).",
    "run": "Run id of a build or an iteration.", "actual": "The side under test.", "golden": "The reference side.",
    "calibration_cache": "The ranges: a cache, a file of either format, or run:ID.",
    "older_than_days": "Only of runs that ended at least this long ago.", "apply": "Delete the engines.",
}  # fmt: skip

# Flows that make an asset of Prefect, and its kind.
_ASSETS = {"convert": "engine", "promote": "engine", "calibrate": "calibration-cache"}

# Parameters that name a flow run; and of its config, if no parameter says on what it runs.
_NAMING = (
    "model", "models", "folder", "actual", "campaign_run", "run_id", "run", "runs", "resume", "precision", "backend",
)  # fmt: skip
_NAMING_OPTIONS = ("runs", "experiment", "folder")


class VerdictError(Exception):
    """Ends a flow run as failed if its ``result`` is not good."""

    def __init__(self, result: OpResult) -> None:
        super().__init__(result.headline)
        self.result = result


def _shorten_expected(record: logging.LogRecord) -> bool:
    """Drop a verdict other than good, whose reasons the flow has logged, and the traceback of other errors of ours."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, errors.TrtopsError):
        record.exc_info = record.exc_text = None  # the second has the masked text
    return not isinstance(error, VerdictError)


for _logger in ("prefect.flow_runs", "prefect.task_runs"):
    logging.getLogger(_logger).addFilter(_shorten_expected)


class OpFlow(Flow[P, R]):
    """The flow of an op."""

    def serialize_parameters(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """The parameters as Prefect's server stores them: masked. The run itself has the real ones."""
        stored: dict[str, Any] = masked_json(super().serialize_parameters(parameters))
        return stored

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the flow in this process and return its result, whatever its verdict.

        Without a Prefect server (``PREFECT_API_URL``) only the op runs: there is no flow run with states, retries and
        artifacts. Prefect would start a server for this process, which takes forty seconds of CPU time.

        Raises ConfigError if a parameter is invalid; the flow run is marked failed with the same message.
        """
        if leading := leading_options(inspect.unwrap(self.fn), args):
            args, kwargs = (), leading | kwargs
        for argument in (*args, *kwargs.values()):
            for value in argument if isinstance(argument, (list, tuple)) else (argument,):
                if is_torch_model(value) and not isinstance(value, (str, Path)):
                    raise errors.ConfigError(
                        f"{self.name}: found a {type(value).__name__}, and parameters of flows are stored as JSON; "
                        "expected script.py:function, or a file."
                    )
        try:
            if not has_server():
                function: Callable[..., Any] = self.fn
                return function(**self.validate_parameters(get_call_parameters(function, args, kwargs)))
            # At the end of a called flow, Prefect joins its heartbeat thread, which sleeps for a second at a time.
            # Workers do not call flows, and deployed runs keep the heartbeats by which a server finds dead ones.
            with temporary_settings(updates={PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
                return super().__call__(*args, **kwargs)
        except VerdictError as bad:
            return bad.result
        except ParameterTypeError as exc:
            raise errors.ConfigError(f"{self.name}: {exc}") from None


def flow_of(
    op: Callable[..., R],
    *,
    base: Callable[[OfflineTracker, Mapping[str, Any]], Any] | None = None,
    place_of: PlaceOf | None = None,
    by_steps: bool = False,
    after: Callable[[R, Mapping[str, Any]], R] | None = None,
) -> OpFlow[..., R]:
    """Make the flow of an op, or of a function with an op's signature.

    Parameters are those of the op, ``config``, and every option of the config by its keyword
    (:func:`trtops.ops.keywords.option_keywords`); an option that is not given stays as in ``config``.

    Args:
        op: The op. It is called with the default tracker and the tags of the flow run. One that takes ``**logged`` gets
            the option ``experiment`` as well, and hands all three to another op.
        base: Returns the config whose options apply if no config is given, or None for the defaults.
        place_of: The back end or place of the op's GPU (default: the back end of the config's ``build``, if any).
        by_steps: Whether the op runs its steps by :func:`trtops.ops.result.run_step`. Any other op is one task.
        after: Completes the result from the op's arguments, when the op no longer occupies a GPU.
    """
    name = op.__name__.lstrip("_")
    accepted = inspect.signature(op).parameters
    config_class = config_class_of(op)
    signature, options, texts = _parameters(op, config_class)

    @functools.wraps(op)
    def run(*args: Any, **kwargs: Any) -> Any:
        mark_op()
        arguments = dict(signature.bind(*args, **kwargs).arguments)
        context = prefect.context.FlowRunContext.get()
        flow_run = None if context is None else context.flow_run
        config = arguments.pop("config", None)
        if config_class is not None:
            set_options = {option.path: arguments.pop(key, None) for key, option in options.items()}
            set_options = {path: value for path, value in set_options.items() if value is not None}
            backend = arguments.pop("backend", None) if takes_backend(op) else None
            if arguments.get("resume") is None:  # a wrong option is refused before a store is made
                configured(config_class if config is None else config, set_options, backend)
        tracker = open_tracker()
        if "resume" in accepted and arguments.get("resume") is None and flow_run is not None and flow_run.run_count > 1:
            arguments["resume"] = _interrupted_run(tracker, str(flow_run.id))
        if config_class is not None:
            if config is None and base is not None:
                config = base(tracker, arguments)
            config = configured(config_class if config is None else config, set_options, backend)
        backend = getattr(getattr(config, "build", None), "backend", None)
        where = backend if place_of is None else place_of(tracker, config, arguments)
        supplied = {"tracker": tracker, "tags": _flow_run_tags()}
        arguments |= {key: argument for key, argument in supplied.items() if key in accepted or "logged" in accepted}
        try:
            with device_slot(where) as devices, steps_run_by(run_as_task):
                if config is not None:
                    arguments["config"] = replace(config, devices=devices) if devices else config
                result = op(**arguments) if by_steps else run_as_task(name, functools.partial(op, **arguments))
            if after is not None:
                result = after(result, arguments)
        except errors.TrtopsError as exc:
            if not in_flow():
                raise
            return state_of("error", masked(str(exc)), masked(str(exc)), exc)  # Prefect's name has no reason: "Failed"
        return _ended(result) if in_flow() and isinstance(result, OpResult) else result

    run.__signature__ = signature  # type: ignore[attr-defined]
    # Prefect takes the descriptions of parameters from the docstring.
    lines = (f"    {key}: {' '.join(texts.get(key, '').split())}" for key in signature.parameters)
    run.__doc__ = "\n".join([(inspect.getdoc(op) or "").partition("\n")[0], "", "Args:", *lines])
    run.__name__ = run.__qualname__ = name
    run.__module__ = "trtops.flows"
    return OpFlow(
        run,
        name=name.replace("_", "-"),
        flow_run_name=_run_name,
        validate_parameters=True,
        # Prefect would pickle them.
        persist_result=False,
        on_crashed=[close_runs],
        on_cancellation=[close_runs],
    )


def _flow_run_tags() -> dict[str, str]:
    """Tags for the run of an op that name the current flow run; empty without one."""
    context = prefect.context.FlowRunContext.get()
    if context is None or context.flow_run is None:
        return {}
    page = url_for("flow-run", obj_id=context.flow_run.id)  # None for a server that ends with this process
    tags = {schema.Tag.PREFECT_FLOW_RUN: str(context.flow_run.id)}
    return tags if page is None else {**tags, schema.Tag.PREFECT_URL: page}


def _annotation(op: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter, without the Python objects allowed as well."""
    annotation = parameter_type(op, parameter)
    kinds = get_args(annotation)
    if str not in kinds or get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    plain = Path if parameter.name == "model" else str
    return plain | None if type(None) in kinds else plain


def _parameters(
    op: Callable[..., Any], config_class: type[Record] | None
) -> tuple[inspect.Signature, dict[str, OptionField], dict[str, str]]:
    """The flow's signature, the option of the config behind a parameter, and the description of each parameter."""
    accepted, texts = inspect.signature(op).parameters, _SHARED | dict(parameter_docstrings(inspect.getdoc(op)))
    # Prefect makes a pydantic model of the parameters, and attributes of such models cannot be fields.
    options = {
        name: option for name, option in option_keywords(op).items() if not hasattr(pydantic.BaseModel, option.name)
    }
    parameters = []

    def add(name: str, kind: Any, text: str) -> None:
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind | None, default=None))
        texts[name] = text

    for parameter in accepted.values():
        if parameter.name == "logged":
            if "experiment" not in options:
                add("experiment", str, _SHARED["experiment"])
        elif parameter.name == "config":
            parameters.append(parameter.replace(annotation=config_class | None, default=None))  # type: ignore[operator]
            texts["config"] = "All options in one value; an option that is given on its own replaces the one in here."
        elif parameter.name not in PYTHON_ONLY and parameter.name not in options:
            parameters.append(parameter.replace(annotation=_annotation(op, parameter)))
    if takes_backend(op):
        add("backend", BackendName, "The back end that builds the engine, with its default options.")
    for name, option in options.items():
        shown = option.default
        default = f" (default: {shown})." if isinstance(shown, (bool, int, float, str)) else "."
        add(name, option.type, option.help.rstrip(".") + default)
    return inspect.Signature(parameters), options, texts


def task_of(function: Callable[P, R], name: str, *, run_name: str | None = None, retries: int = 3) -> Task[P, R]:
    """Make a Prefect task of a function. It is retried if infrastructure was lost, but for no other error of ours."""
    return Task(
        function,
        name=name,
        task_run_name=run_name,
        retries=retries,
        retry_delay_seconds=[1.0, 5.0, 15.0][:retries],
        retry_condition_fn=worth_a_retry,
        persist_result=False,
        # An op finds earlier engines in the store by content; Prefect would use paths as keys, and pickle results.
        cache_policy=NO_CACHE,
    )


def run_as_task(name: str, function: Callable[[], R], *, by_steps: bool = False) -> R:
    """Call a function as a Prefect task, or directly outside of flows; the result is returned.

    A task fails if the result's verdict is not good.

    It is retried, except inside a retried task. One that is made ``by_steps`` retries only these: a retry of the whole
    would leave another run in MLflow.
    """
    if not in_flow():
        return function()
    results: list[R] = []

    # No arguments, and no result in the state: Prefect would search them for futures and keep them until the end.
    def step() -> State[Any] | None:
        results.append(function())
        return task_state(results[-1])

    outer = prefect.context.TaskRunContext.get()
    retries = 0 if by_steps or (outer is not None and outer.task.retries) else 3
    state = task_of(step, name, retries=retries)(return_state=True)
    if not results:
        state.result()  # raises the error of the function
    return results[-1]


def task_state(result: object, data: object = None) -> State[Any] | None:
    """The state of a task with this result, and ``data`` in it; None if it has no verdict, or a good one."""
    verdict = getattr(result, "verdict", None)
    if verdict not in VERDICTS or verdict == "good":
        return None
    reasons = getattr(result, "reasons", ())
    return state_of(verdict, next(iter(reasons), ""), masked(listed(reasons, 10, "; ")) or verdict, data)


def worth_a_retry(task: Task[..., Any], task_run: object, state: Any) -> bool:
    """True if a failed task may be retried: transient errors of ours, and others about the network."""
    error = state.result(raise_on_failure=False)  # the result itself, for a task that failed by its verdict
    if isinstance(error, errors.TrtopsError):
        return error.transient
    return isinstance(error, (ConnectionError, TimeoutError))


def open_tracker() -> OfflineTracker:
    """The default tracker; once per process, runs left open by dead processes of this machine are closed."""
    tracker = default_tracker()
    with contextlib.suppress(errors.TrackingError):  # this run is kept on disk until the store is back
        _reap_once(tracker)
    return tracker


_reap_once = functools.cache(reap)


def _interrupted_run(tracker: OfflineTracker, flow_run_id: str) -> str | None:
    """The run that an earlier start of this flow run left unfinished; None if it left none."""
    runs = tracker.find(tags={schema.Tag.PREFECT_FLOW_RUN: flow_run_id})
    return next((info.id for info in runs if info.parent is None and info.status != "finished"), None)


def close_runs(flow: object, flow_run: Any, state: Any) -> None:
    """Close the MLflow runs left open by a crashed or cancelled flow run. Prefect calls it with these names."""
    tracker = default_tracker()
    for run in tracker.find(tags={schema.Tag.PREFECT_FLOW_RUN: str(flow_run.id)}, status="running"):
        tracker.close(run.id, f"Prefect flow run {flow_run.name!r} ended as {state.name}")


def _run_name() -> str:
    """The name of a flow run: its subject and precision. Prefect calls it at the start of the run."""
    context = prefect.context.FlowRunContext.get()
    parameters = {} if context is None else context.parameters or {}
    build = getattr(parameters.get("config"), "build", None)
    if build is not None:  # a flow called from Python may have its options in the config alone
        of_config = {"precision": build.precision, "backend": build.backend}
        parameters = of_config | {name: value for name, value in parameters.items() if value}
    names = [parameters[name] for name in _NAMING if parameters.get(name)]
    if not names:
        options = parameters | vars(parameters.get("config") or SimpleNamespace())
        names = [options[name] for name in _NAMING_OPTIONS if options.get(name)]
    words: list[str] = []
    for name in names or [platform.node()]:
        several = name if isinstance(name, (tuple, list)) else (name,)
        for value in several:  # a pattern says more than the stem of its last part
            words.append(str(value) if "*" in str(value) else model_stem(str(value)))
    words = [word[:8] if re.fullmatch("[0-9a-f]{32}", word) else word for word in words]  # ids of runs, as in tables
    return masked(" ".join(words))[:200]


def state_of(verdict: Verdict, reason: str, message: str, data: Any = None) -> State[Any]:
    """The final state of a flow run: failed unless good, for lists, filters and automations."""
    name = verdict.capitalize()
    # Prefect's lists show about 80 characters.
    name = textwrap.shorten(f"{name}: {reason}" if reason else name, 80, placeholder=" …")
    return (Completed if verdict == "good" else Failed)(name=name, message=message, data=data)


def _ended(result: OpResult) -> State[Any]:
    """Show a result as an artifact of the flow run, and return the state of the run, named after the verdict."""
    reasons = getattr(result, "reasons", ())
    message = listed(reasons, 10, "; ") or result.headline
    message = masked(f"{message} ({result.evidence})" if result.evidence else message)
    reason = result.headline if result.headline != result.verdict else next(iter(reasons), "")
    state = state_of(result.verdict, reason, message, result if result.verdict == "good" else VerdictError(result))
    # The key keeps the results of an experiment in one history.
    key = re.sub("[^a-z0-9]+", "-", f"{result.title} {result.experiment}".lower()).strip("-")
    steps = [("Report", NextStep("report", {"run": result.run_id}))] if result.run_id else []
    steps += [("Next", result.next_step)] if result.next_step is not None else []
    needed = [f"Needed: {result.needed}"] if result.needed else []
    page = "\n\n".join([result.page(), *needed, *(f"{title}: {code(str(step))}" for title, step in steps)])
    description = without_links(f"{result.title}: {state.name}")
    create_markdown_artifact(without_links(page, result.url), key=key or "result", description=description)
    context = prefect.context.FlowRunContext.get()
    assert context is not None and context.flow is not None and context.flow_run is not None
    run_text = f" MLflow run: {result.url or result.run_id}." if result.run_id else ""
    level = logging.INFO if result.verdict == "good" else logging.WARNING
    log.log(level, "%s: %s.%s", result.verdict, message, run_text)
    # For filters of Prefect's lists, and for automations: an event such as trtops.convert.bad.
    parameters = context.parameters or {}
    precision = parameters.get("precision") or getattr(result, "called", "").lower()
    tags = {masked(model_stem(result.subject)), precision, result.verdict} - {""}
    context.client.update_flow_run(context.flow_run.id, tags={*context.flow_run.tags, *tags})
    resource = {"prefect.resource.id": f"trtops.run.{result.run_id}", "prefect.resource.name": masked(result.title)}
    payload = {
        "verdict": result.verdict,
        "message": message,
        "experiment": result.experiment,
        "subject": result.subject,
    }
    emit_event(f"trtops.{context.flow.name}.{result.verdict}", resource, payload=masked_json(payload))
    if (kind := _ASSETS.get(context.flow.name)) and result.run_id and result.verdict in PASSED:
        # Prefect's own decorator needs the asset's name before the run has an id.
        files = filter(None, (result.subject, parameters.get("data")))
        sources = [{"prefect.resource.id": f"file://{file}", "prefect.resource.role": "asset"} for file in files]
        asset = resource | {"prefect.resource.id": f"mlflow://{result.run_id}/{kind}"}
        emit_event("prefect.asset.materialization.succeeded", asset, related=masked_json(sources))
    for tactic in getattr(result, "denied", ()):
        denied = {"prefect.resource.id": f"trtops.tactic.{tactic}", "trtops.backend": getattr(result, "backend", "")}
        emit_event("trtops.tactic.denied", denied, payload={"kernel": tactic, "run": result.run_id})
    return state
