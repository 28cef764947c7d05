"""What a command line asks for, as a value: one call, where its run is kept, and how its result is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trtops import ops, terminal
from trtops.cli import logs
from trtops.cli.flags import Group, Options
from trtops.cli.script import resolve

Store = Literal["none", "reads", "writes", "optional", "temporary"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One call of an op, or of a function of the command.

    Attributes:
        call: The op's name in :mod:`trtops.ops`; or a function that does everything and returns the exit code.
        args: Positional arguments.
        kwargs: Keyword arguments.
        store: Which tracking store the op gets: ``none``; the one it ``reads``, which must exist, or ``writes``;
            ``optional``, only with an experiment; ``temporary``, in memory unless an experiment or a store is given.
        place: Where the store is.
        json: Whether to print JSON.
        show: Prints the result, given it and the store's place; by default its page and how it ended.
        code: Returns the exit code for the result; by default 0 unless its verdict is bad.
        progress: What a progress bar says, and its unit; or what the op calls with its progress.
    """

    call: str | Callable[..., int]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    store: Store = "none"
    place: str | None = None
    json: bool = False
    show: Callable[[Any, str | None], None] | None = None
    code: Callable[[Any], int] | None = None
    progress: tuple[str, str] | Callable[..., None] | None = None

    def run(self) -> int:
        """Make the call, show the result, and return the exit code."""
        args, kwargs = resolve(self.args), resolve(dict(self.kwargs))
        if callable(self.call):
            return self.call(*args, **kwargs)
        if self.store != "none":
            kwargs["tracker"] = tracker(self.store, self.place, kwargs.get("experiment"))
        op = getattr(ops, self.call)
        if isinstance(self.progress, tuple):
            with terminal.progress(*self.progress) as bar:
                result = op(*args, **kwargs, progress=bar.update)
        else:
            result = op(*args, **kwargs, **({} if self.progress is None else {"progress": self.progress}))
        if self.json:
            logs.say_json(json_of(result))
        elif self.show is not None:
            self.show(result, self.place)
        elif hasattr(result, "page"):
            logs.say_result(result, self.place)
        else:
            logs.say(result.text())
        return self.code(result) if self.code is not None else int(getattr(result, "verdict", "good") != "good")


@dataclass(frozen=True)
class Command:
    """One command: how it becomes a job, its options, examples, and what it does."""

    plan: Callable[[Options], Job]
    groups: tuple[Group, ...]
    examples: tuple[str, ...]
    about: str


def op_job(args: Options, call: str, *more: Any, store: Store = "none", **kwargs: Any) -> Job:
    """Return the job of an op, with the store and ``--json`` from the options.

    Args:
        args: The options.
        call: The op.
        more: Its positional arguments.
        store: Which tracking store it gets.
        kwargs: Its keyword arguments; ``show``, ``code`` and ``progress`` are those of :class:`Job`.
    """
    own = {name: kwargs.pop(name) for name in ("show", "code", "progress") if name in kwargs}
    used = store not in ("none", "optional") or (store == "optional" and kwargs.get("experiment") is not None)
    place = args.store if used else None
    as_json = bool(getattr(args, "json", False))
    return Job(call=call, args=more, kwargs=kwargs, store=store, place=place, json=as_json, **own)


def tracker(store: Store, place: str | None, experiment: str | None = None) -> Any:
    """Open a tracking store; see :class:`Job` for the kinds. None if an ``optional`` one is not used."""
    if store == "none" or (store == "optional" and experiment is None):
        return None
    if store == "temporary" and experiment is None and place is None:
        from trtops.tracking.memory import MemoryTracker

        return MemoryTracker()
    from trtops.tracking.store import existing_tracker, open_tracker  # slower than most commands

    return existing_tracker(place) if store == "reads" else open_tracker(place)


def no_verdict(result: Any) -> int:
    """Return exit code 0 for a result whose verdict is not the command's."""
    return 0


def json_of(result: Any) -> Any:
    """Return a result as JSON values; lists of results as lists."""
    if isinstance(result, (list, tuple)):
        return [json_of(each) for each in result]
    return result.to_dict() if hasattr(result, "to_dict") else result.to_json()
