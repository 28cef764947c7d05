"""Functions that do at once what loaders do when they are called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def immediately(loader: Callable[P, Callable[[], T]]) -> Callable[P, T]:
    """Make a loader's twin in snake_case: the function that takes what the loader takes, and calls it at once.

    Made rather than written, so that the two cannot come to differ.

    Args:
        loader: The loader's class.
    """

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return loader(*args, **kwargs)()

    twin: Any = call
    made: Any = loader
    twin.__name__ = twin.__qualname__ = re.sub(r"(?<!^)(?=[A-Z])", "_", made.__name__).lower()
    twin.__module__ = made.__module__
    twin.__doc__ = f"Do at once what :class:`{made.__name__}` does when called."
    twin.__signature__ = inspect.signature(made).replace(
        return_annotation=inspect.signature(made.__call__).return_annotation
    )
    return call
