"""Shell patterns of names."""

import fnmatch
from collections.abc import Iterable

from trtops import errors

# In place of a list of outputs: every tensor that can be one.
MARK_ALL = "mark-all"


def is_mark_all(outputs: object) -> bool:
    """Whether a value of ``outputs`` stands for every tensor; command lines give it as two words."""
    return outputs in (MARK_ALL, [MARK_ALL], ["mark", "all"], ("mark", "all"))


def expand(patterns: Iterable[str], names: Iterable[str], *, of: str = "The model", kind: str = "tensor") -> list[str]:
    """Replace each shell pattern (``*``, ``?``, ``[...]``) by the matching names; in order, each name once.

    A pattern that is itself a name matches only that name. Raises ConfigError, with ``of`` (the owner of the names) and
    ``kind`` (their kind), if a pattern matches nothing, or a plain name is not known.

    >>> expand(["conv*", "out"], ["conv_0", "conv_1", "out", "x"])
    ['conv_0', 'conv_1', 'out']
    """
    unique_names = dict.fromkeys(names)
    expanded: dict[str, None] = {}
    for pattern in patterns:
        matches = [pattern] if pattern in unique_names else fnmatch.filter(unique_names, pattern)
        if not matches:
            raise errors.ConfigError(
                f"{of} has no {kind} {pattern!r}. {errors.near(pattern, filter(None, unique_names))}"
            )
        expanded.update(dict.fromkeys(matches))
    return list(expanded)
