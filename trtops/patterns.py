"""Shell patterns of names."""

import fnmatch
from collections.abc import Iterable

from trtops import errors

# In place of a list of outputs: every tensor that can be one.
MARK_ALL = "mark-all"


def is_mark_all(outputs: object) -> bool:
    """Whether a value of ``outputs`` stands for every tensor; command lines give it as two words."""
    return outputs in (MARK_ALL, [MARK_ALL], ["mark", "all"], ("mark", "all"))


def expand(patterns: Iterable[str], names: Iterable[str], *, of: str = "The model", what: str = "tensor") -> list[str]:
    """Replace each shell pattern (``*``, ``?``, ``[...]``) by the names that match; in order, each name once.

    A pattern that is itself a name matches only that name. Raises ConfigError, with ``of`` (the owner of the names) and
    ``what`` (their kind), if a pattern matches nothing, or a plain name is not known.
    """
    known = dict.fromkeys(names)
    found: dict[str, None] = {}
    for pattern in patterns:
        matches = [pattern] if pattern in known else fnmatch.filter(known, pattern)
        if not matches:
            raise errors.ConfigError(f"{of} has no {what} {pattern!r}. {errors.near(pattern, filter(None, known))}")
        found.update(dict.fromkeys(matches))
    return list(found)
