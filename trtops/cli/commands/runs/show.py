"""Show what the store holds of a run: params, numbers, tags and files. Exits with 1 if the run is incomplete."""

from trtops.cli.commands.inspect.run import GROUPS, plan

__all__ = ["EXAMPLES", "GROUPS", "plan"]

EXAMPLES = ("trtops runs show 8d6e3f",)
