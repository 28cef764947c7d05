"""Build every model of a list (YAML), and say what became of each. One that fails does not stop the others; exits with 1."""

from __future__ import annotations

from dataclasses import dataclass

from trtops import ops
from trtops.cli import groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say, say_json, say_result

GROUPS = (
    Group("list", (Flag(names=("models",), shown="LIST", help="the list, such as models.yaml"),)),
    Group(
        "building",
        (
            Flag(names=("--check",), takes="switch", help="build nothing; say what is wrong with the list"),
            Flag(
                names=("--backend",),
                usual="all",
                takes="many",
                choices=("onnxruntime", "tensorrt"),
                help="only builds with these back ends",
            ),
            Flag(
                names=("--only-new",), takes="switch", help="only what the memory does not have, by the models' digests"
            ),
            Flag(names=("--attempts",), convert=int, default=3, help="with --only-new: tries of a build that fails"),
        ),
    ),
    groups.TRACKING,
    groups.JSON,
)
EXAMPLES = (
    "trtops build-list models.yaml",
    "trtops build-list models.yaml --check",
    "trtops build-list m.yaml --only-new",
)


@dataclass(frozen=True)
class Plan:
    """What to build.

    Attributes:
        models: The list's file.
        config: Which of its builds; None to check the list alone.
        experiment: Of the summary.
        store: Where the memory is.
        json: Whether to print JSON.
    """

    models: str
    config: ops.BuildListConfig | None
    experiment: str | None
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    backends = None if args.backend is None else tuple(args.backend)
    config = ops.BuildListConfig(backends=backends, only_new=bool(args.only_new), attempts=args.attempts)
    return Plan(args.models, None if args.check else config, args.experiment, args.store, bool(args.json))


def execute(plan: Plan) -> int:
    """Build them, and print what became of each."""
    if plan.config is None:
        return _check(plan.models)
    tracker = memory.opened(plan.store)
    result = ops.build_list(plan.models, plan.config, tracker=tracker, experiment=plan.experiment)
    if plan.json:
        say_json(result.to_dict())
    else:
        say_result(result, plan.store)
    return 0 if result.verdict == "good" else 1


def _check(models: str) -> int:
    """Say what is missing, or how much there is to build."""
    listed = ops.read_model_list(models)
    problems = listed.problems()
    for problem in problems:
        say(problem)
    if not problems:
        say(f"{models}: entries: {len(listed.models)}, builds: {len(listed.builds())}, nothing missing.")
    return 1 if problems else 0
