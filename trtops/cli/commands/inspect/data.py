"""Show saved inputs or outputs: types, shapes, statistics, and values with --show-values."""

from __future__ import annotations

from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import Job, op_job
from trtops.cli.script import given

GROUPS = (
    Group(
        "data",
        (
            flag("path", "a .json file of saved inputs or outputs, an .npz or an .npy"),
            flag("-a --all", "show every iteration, not only the first", to="all"),
            flag("-s --show-values", "show values", to="show_values"),
            flag("--histogram", "show the distribution of values"),
            flag("--statistics", "show statistics", idle="they are always shown"),
            flag("-n --num-items N", "values at the ends of each axis", usual="3", to="num_items"),
            flag("--line-width N", "longest line of values; -1 for no limit", usual="75"),
        ),
    ),
    groups.JSON,
)
EXAMPLES = ("trtops inspect data outputs.json --show-values", "trtops inspect data inputs.json --histogram --all")


def plan(args: Options) -> Job:
    """Return the job."""
    shown = given(
        show_values=args.show_values,
        histogram=args.histogram,
        all_iterations=args.all,
        items=args.num_items,
        line_width=args.line_width,
    )
    return op_job(args, "inspect_data", args.path, **shown)
