"""Find the accepted engine for a model on this machine, and write it to a file with -o. Exits with 1 if there is none."""

from __future__ import annotations

from typing import Any

from trtops import ops
from trtops.backend.common import save_bytes
from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, tracker
from trtops.cli.logs import say, say_json

GROUPS = (
    Group(
        "engine",
        (
            flag("model_file", "the ONNX model"),
            flag("--name NAME", "the registered model (default: the model file's name)"),
            flag("--key FILE+", "public keys that the engine must be signed with"),
            flag("-o --output FILE", "where to write the engine", to="output"),
        ),
    ),
    Group("back end (default: ONNX Runtime)", configs.BACKEND.only("backend").flags),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs resolve model.onnx --trt -o model.engine",)


def plan(args: Options) -> Job:
    """Return the job."""
    engine = {"backend": args.backend or "onnxruntime", "name": args.name, "keys": tuple(args.key or ())}
    return Job(call=_resolve, args=(args.model_file, engine, args.output, args.store, bool(args.json)))


def _resolve(model: str, engine: dict[str, Any], output: str | None, place: str | None, as_json: bool) -> int:
    store = tracker("reads", place)
    found = ops.resolve(model, tracker=store, **engine)
    if found.run_id and found.path and output:
        save_bytes(found.engine(store).plan, output)
    if as_json:
        say_json(found.to_dict())
    elif found.run_id:
        say(f"Version {found.version} of {found.name!r}: run {found.run_id}, {found.path}")
    else:
        say(found.why)
    return 0 if found.run_id else 1
