"""Build every model of a list (YAML) and report the outcome of each.

A failure does not stop the other builds. Exits with 1 if one failed.
"""

from __future__ import annotations

from trtops import ops
from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, op_job
from trtops.cli.logs import say

GROUPS = (
    Group("list", (flag("models", "the list, such as models.yaml", shown="LIST"),)),
    Group("checking", (flag("--check", "build nothing; report what is wrong with the list"),)),
    configs.config_flags("building", "BuildListConfig", {"backends": "--backend"}),
    groups.TRACKING,
    groups.JSON,
)
EXAMPLES = (
    "trtops build-list models.yaml",
    "trtops build-list models.yaml --check",
    "trtops build-list models.yaml --only-new",
)


def plan(args: Options) -> Job:
    """Return the job."""
    if args.check:
        return Job(call=_check, args=(args.models,))
    config = configs.make(args, "BuildListConfig")
    return op_job(args, "build_list", args.models, config, store="writes", experiment=args.experiment)


def _check(models: str) -> int:
    """Print what is missing, or how much there is to build."""
    listed = ops.read_model_list(models)
    problems = listed.problems()
    for problem in problems:
        say(problem)
    if not problems:
        say(f"{models}: entries: {len(listed.models)}, builds: {len(listed.builds())}, nothing missing.")
    return 1 if problems else 0
