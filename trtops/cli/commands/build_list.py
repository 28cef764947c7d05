"""The command ``trtops build-list``."""

from __future__ import annotations

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, command, op_job
from trtops.cli.logs import say


@command(
    Group("list", flag("models", "the list, such as models.yaml", shown="LIST")),
    Group("checking", flag("--check", "build nothing; report what is wrong with the list")),
    configs.config_flags("building", "BuildListConfig", {"backends": "--backend"}),
    groups.TRACKING,
    groups.JSON,
    examples=(
        "trtops build-list models.yaml",
        "trtops build-list models.yaml --check",
        "trtops build-list models.yaml --only-new",
    ),
)
def build_list(args: Options) -> Job:
    """Build every model of a list (YAML) and report the outcome of each.

    A failure does not stop the other builds. Exits with 1 if one failed.
    """
    models = args.models
    if not args.check:
        config = configs.make(args, "BuildListConfig")
        return op_job(args, "build_list", models, config, store="writes", experiment=args.experiment)

    def check() -> int:
        listed = ops.read_model_list(models)
        problems = listed.problems()
        good = f"{models}: entries: {len(listed.models)}, builds: {len(listed.builds())}, nothing missing."
        say("\n".join(problems) or good)
        return 1 if problems else 0

    return check
