"""Pack a run into one zip file that reproduces its verdict without trtops, with `python reproduce.py`.

The zip file contains model, inputs, golden outputs, tactics, caches, environment, the releases to install, and a bug report.
The script is run before the zip file is written: exit code 3 if it does not reproduce the verdict.
"""

from __future__ import annotations

from trtops.cli import configs, groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, no_verdict, op_job

GROUPS = (
    Group("run", (flag("run", "a build's run, or an iteration's"),)),
    configs.config_flags("bundle", "BundleConfig", {"output": "-o --output", "timeout_seconds": "--script-timeout"}),
    groups.STORE,
    groups.JSON,
)
EXAMPLES = ("trtops runs bundle 8d6e3f -o fault.zip",)


def plan(args: Options) -> Job:
    """Return the job."""
    return op_job(args, "bundle", args.run, configs.make(args, "BundleConfig"), store="writes", code=no_verdict)
