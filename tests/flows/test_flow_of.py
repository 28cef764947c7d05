"""A flow is derived from its op: parameters, defaults and descriptions, as Prefect's forms show them."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass, field

import pytest
import yaml

from flows.deployments import FILE
from trtops import errors, flows
from trtops.flows.flow_of import VerdictError, flow_of, run_as_task, worth_a_retry
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.result import OpResult, run_step
from trtops.record import Record, option_fields
from trtops.tracking.base import Tracker

pytestmark = pytest.mark.usefixtures("store", "prefect_home")


@dataclass(frozen=True, kw_only=True)
class Check(Record):
    """How to check.

    Attributes:
        data: The data to check with.
        limit: The largest error.
    """

    data: str | None = None
    limit: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Config(Record):
    """What to do.

    Attributes:
        data: The data.
        times: How often.
        check: How to check.
    """

    data: str | None = None
    times: int = 2
    check: Check = field(default_factory=Check)


@dataclass(frozen=True, kw_only=True)
class Result(OpResult):
    """What came out."""

    config: Config | None = None
    verdict: str = "good"  # type: ignore[assignment]

    def body(self):  # type: ignore[no-untyped-def]
        return ()


def op(subject: str, config: Config | None = None, *, tracker: Tracker, tags: dict[str, str]) -> Result:
    """Do it.

    Args:
        subject: To what.
        config: Everything else.
    """
    calls.append(tags)
    return Result(config=config, verdict="bad" if subject == "bad" else "good")


calls: list[dict[str, str]] = []


def test_parameters_are_those_of_op_and_config():
    form = flow_of(op).parameters

    assert list(form.properties) == ["subject", "config", "data", "times", "check_data", "limit"]
    assert form.required == ["subject"]
    assert form.properties["times"]["description"] == "How often (default: 2)."
    assert form.properties["check_data"]["description"] == "The data to check with."
    assert form.properties["times"]["anyOf"][0] == {"type": "integer"}


def test_options_replace_those_of_the_config():
    made = flow_of(op)

    assert made("x").config == Config()
    assert made("x", Config(times=3), check_data="d", limit=0.1).config == Config(
        times=3, check=Check(data="d", limit=0.1)
    )
    assert made("x", {"times": 4}).config == Config(times=4)
    assert "trtops.prefect_flow_run_id" in calls[-1]
    with pytest.raises(errors.ConfigError, match="times"):
        made("x", times="often")


def test_bad_verdict_fails_the_run_and_is_returned():
    made = flow_of(op)

    assert made("bad").verdict == "bad"
    state = made("bad", return_state=True)
    assert state.is_failed() and state.name == "Bad"
    with pytest.raises(VerdictError):
        state.result()


def test_only_lost_infrastructure_is_retried(monkeypatch):
    class State:
        def __init__(self, error: BaseException) -> None:
            self.error = error

        def result(self, raise_on_failure: bool) -> BaseException:
            return self.error

    def worth(error: BaseException) -> bool:
        return worth_a_retry(None, None, State(error))  # type: ignore[arg-type]

    assert worth(errors.TrackingUnavailableError("gone")) and worth(ConnectionError())
    assert not worth(errors.InvalidModelError("x")) and not worth(errors.LogError("full")) and not worth(ValueError())


def test_steps_are_tasks_of_the_flow_run():
    names: list[str] = []

    def in_steps(subject: str, *, tracker: Tracker) -> None:
        from prefect.context import TaskRunContext

        def note() -> str:
            context = TaskRunContext.get()
            names.append(context.task.name if context is not None else "")
            if len(names) == 1:
                raise ConnectionError(subject)
            return subject

        assert run_step("build", note) == subject
        assert run_as_task("outer", lambda: run_step("inner", note)) == subject

    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr("prefect.task_engine.time.sleep", lambda seconds: None, raising=False)
        flow_of(in_steps, by_steps=True)("x")

    assert names == ["build", "build", "inner"]


@pytest.mark.parametrize("name", flows.__all__)
def test_every_parameter_is_explained(name: str):
    form = getattr(flows, name).parameters

    for key, part in form.properties.items():
        assert part.get("description"), f"{name}: {key}"


def test_every_option_of_convert_is_a_parameter():
    options = {option.name for option in option_fields(ConvertConfig)}

    assert options <= set(flows.convert.parameters.properties)
    until = flows.debug_build.parameters.properties["until"]["anyOf"]
    assert until[1]["enum"] == ["good", "bad", "decided"]


def test_checkout_and_wheel_have_the_same_flows():
    for name in flows.__all__:
        assert getattr(importlib.import_module(f"flows.{name}"), name) is getattr(flows, name)


def test_deployments_name_flows_and_their_parameters():
    listed = yaml.safe_load(FILE.read_text())["deployments"]
    for deployment in listed:
        module, _, name = deployment["entrypoint"].rpartition(".")
        flow = getattr(importlib.import_module(module), name)
        given = deployment.get("parameters", {})
        assert set(given) <= set(inspect.signature(flow.fn).parameters)
        assert not {"precision", "config"} & set(given)  # they would hide what the form asks for
        assert "env" not in deployment["work_pool"].get("job_variables", {})
        assert deployment["name"] == deployment["work_pool"]["name"].removeprefix("trtops-")
    assert len({(each["entrypoint"], each["name"]) for each in listed}) == len(listed)
