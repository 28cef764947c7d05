"""Functions that create a loader and call it."""

import inspect
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def immediately(loader: Callable[P, Callable[[], T]]) -> Callable[P, T]:
    """Return the function of a loader's class: it has the class's name in snake_case, and takes the same arguments."""

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return loader(*args, **kwargs)()

    function: Any = call
    made: Any = loader
    function.__name__ = function.__qualname__ = re.sub(r"(?<!^)(?=[A-Z])", "_", made.__name__).lower()
    function.__module__ = made.__module__
    function.__doc__ = f"Create a :class:`{made.__name__}` and call it."
    function.__signature__ = inspect.signature(made).replace(
        return_annotation=inspect.signature(made.__call__).return_annotation
    )
    return call
