"""Show saved inputs or outputs: types, shapes and statistics, and values if asked for."""

from __future__ import annotations

from trtops.cli import asking, groups
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.script import call

GROUPS = (
    Group(
        "data",
        (
            Flag(names=("path",), help="a .json file of saved inputs or outputs, an .npz or an .npy"),
            Flag(names=("-a", "--all"), to="all", takes="switch", help="show every iteration, not the first alone"),
            Flag(names=("-s", "--show-values"), to="show_values", takes="switch", help="show values"),
            Flag(names=("--histogram",), takes="switch", help="show how values are spread"),
            Flag(
                names=("--statistics",),
                takes="switch",
                help="show statistics",
                idle="they are always shown",
            ),
            Flag(
                names=("-n", "--num-items"),
                usual="3",
                to="num_items",
                convert=int,
                shown="N",
                help="values at the ends of each axis",
            ),
            Flag(
                names=("--line-width",),
                usual="75",
                convert=int,
                shown="N",
                help="longest line of values; -1 for no limit",
            ),
        ),
    ),
    groups.JSON,
)
EXAMPLES = ("trtops inspect data outputs.json --show-values", "trtops inspect data inputs.json --histogram --all")


def plan(args: Asked) -> asking.Question:
    """The question."""
    question = call(
        "trtops.ops", "inspect_data", args.path,
        show_values=args.show_values, histogram=args.histogram, all_iterations=args.all, items=args.num_items, line_width=args.line_width,
    )  # fmt: skip
    return asking.Question(question, bool(args.json))


execute = asking.answer
