"""Find the accepted engine for a model on this machine, and write it to a file if asked. Exits with 1 if there is none."""

from __future__ import annotations

from dataclasses import dataclass

from trtops import ops
from trtops.backend.common import save_bytes
from trtops.cli import configs, groups, memory
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import say, say_json

GROUPS = (
    Group(
        "engine",
        (
            Flag(names=("model_file",), help="the ONNX model"),
            Flag(
                names=("--name",),
                help="the registered model (default: the model file's name, which experiments have unless named)",
            ),
            Flag(names=("--key",), takes="many", shown="FILE", help="public keys that the engine must be signed with"),
            Flag(names=("-o", "--output"), to="output", shown="FILE", help="where to write the engine"),
        ),
    ),
    Group("back end, ONNX Runtime unless named", tuple(f for f in configs.BACKEND.flags if f.dest == "backend")),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs resolve model.onnx --trt -o model.engine",)


@dataclass(frozen=True)
class Plan:
    """What to find.

    Attributes:
        model: The model.
        backend: Who is to run it.
        name: The registered model.
        keys: Public keys that it must be signed with.
        output: Where to write the engine.
        store: Where the memory is.
        json: Whether to print JSON.
    """

    model: str
    backend: str
    name: str | None
    keys: tuple[str, ...]
    output: str | None
    store: str | None
    json: bool


def plan(args: Asked) -> Plan:
    """What the options stand for."""
    return Plan(
        args.model_file,
        args.backend or "onnxruntime",
        args.name,
        tuple(args.key or ()),
        args.output,
        args.store,
        bool(args.json),
    )


def execute(plan: Plan) -> int:
    """Find it, and print."""
    tracker = memory.existing(plan.store)
    found = ops.resolve(plan.model, tracker=tracker, backend=plan.backend, name=plan.name, keys=plan.keys)
    if found.run_id and found.path and plan.output:
        save_bytes(found.engine(tracker).plan, plan.output)
    if plan.json:
        say_json(found.to_dict())
    else:
        say(
            f"Version {found.version} of {found.name!r}: run {found.run_id}, {found.path}"
            if found.run_id
            else found.why
        )
    return 0 if found.run_id else 1
