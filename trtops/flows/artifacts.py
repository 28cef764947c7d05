"""What a flow shows in Prefect: a Markdown artifact with the result, and a state whose name is the verdict."""

from __future__ import annotations

import contextlib
from typing import Any, TypeVar, cast

from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from trtops import errors
from trtops.flows.tasks import VerdictError, tracker
from trtops.ops.result import OpResult
from trtops.tracking.schema import Artifact

R = TypeVar("R", bound=OpResult)

_LONGEST_NAME = 80  # characters of a state's name that Prefect's lists show


def ended(result: R) -> R:
    """What a flow returns: its result is shown beside the run, and the state is called by the verdict.

    A bad verdict ends the run as failed, so that lists, filters and automations find it. Whoever calls the flow as a function
    gets the result all the same (:class:`flows.tasks.CalledFlow`), hence the type.
    """
    show_result(result)
    return cast("R", verdict_state(result))


def verdict_state(result: OpResult, error: Exception | None = None) -> State[Any]:
    """The state of a flow that came to a result.

    Args:
        result: The result.
        error: What reading the state's result raises where the verdict is not good; unless given, an error by which
            :class:`flows.tasks.CalledFlow` finds the result.
    """
    name = state_name(result)
    if result.verdict == "good":
        return Completed(name=name, message=result.headline, data=result)
    message = "; ".join(getattr(result, "reasons", ())) or result.headline
    return Failed(name=name, message=message, data=error or VerdictError(result))


def state_name(result: OpResult) -> str:
    """``Good``, or ``Bad:`` and what is wrong, in as many words as a list has room for."""
    verdict = result.verdict.capitalize()
    said = result.headline if result.headline != result.verdict else next(iter(getattr(result, "reasons", ())), "")
    name = " ".join(f"{verdict}: {said}".split()) if said else verdict
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def show_result(result: OpResult) -> None:
    """Put a result beside the flow run, under a key that keeps the history of its experiment together."""
    title = f"{result.title} {result.experiment}".lower()
    words = "".join(c if c.isascii() and c.isalnum() else " " for c in title).split()
    page = "\n".join([result.page(), *_ways_to_the_run(result)])
    create_markdown_artifact(page, key="-".join(words) or "result", description=f"{result.title}: {state_name(result)}")


def _ways_to_the_run(result: OpResult) -> list[str]:
    """How to open report and run from here, also where no server shows the store."""
    if not result.run_id:
        return []
    lines = ["", f"Report: `trtops report {result.run_id}`"]
    with contextlib.suppress(errors.TrtopsError):
        memory = tracker()
        stored = memory.load(result.run_id)
        if memory.store is not None and Artifact.REPORT in stored.manifest:
            lines += ["", f"or open the file `{stored.local_path(Artifact.REPORT)}`"]
    if result.url.startswith("#"):
        address = f"http://127.0.0.1:5000/{result.url}"
        lines += ["", f"The run in MLflow, once `make ui` (or `trtops store ui`) is up here: [{address}]({address})"]
    return lines
