"""Show what is known of a run: params, numbers, tags and files. Exits with 1 if the run is not whole."""

from trtops.cli.commands.inspect.run import GROUPS, execute, plan

__all__ = ["EXAMPLES", "GROUPS", "execute", "plan"]

EXAMPLES = ("trtops runs show 8d6e3f",)
