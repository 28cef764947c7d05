"""Tools to compose loaders: extend one with a function, make one from a value, call one."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar

from trtops import errors
from trtops.lazy import known_as

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def extend(extend_func: Callable[P, Any]) -> Callable[[Callable[..., Any]], Callable[P, Any]]:
    """Return a decorator for a function to continue after ``extend_func``.

    The decorated function gets the result of ``extend_func`` (a tuple as separate arguments), and its own result
    replaces it, unless that is None.

    >>> from trtops.backend.onnx import OnnxFromPath
    >>> @extend(OnnxFromPath("model.onnx"))
    ... def load_model(model):
    ...     model.graph.name = "mine"
    >>> load_model().graph.name
    'mine'

    A decorated function with enough parameters also gets the arguments of ``extend_func``, first. Raises ConfigError
    when called if the number of parameters fits neither.
    """

    def decorate(function: Callable[..., Any]) -> Callable[P, Any]:
        parameters = list(inspect.signature(function).parameters.values())
        accepted = range(sum(p.default is p.empty for p in parameters), len(parameters) + 1)

        @functools.wraps(function)
        def extended(*args: P.args, **kwargs: P.kwargs) -> Any:
            returned = extend_func(*args, **kwargs)
            # A loader that returns nothing is continued by a function without parameters.
            values = () if returned is None and not parameters else make_iterable(returned)
            if len(values) in accepted:
                result = function(*values)
            elif len(args) + len(kwargs) + len(values) in accepted:
                free = [p.name for p in parameters[len(args) :] if p.name not in kwargs]
                result = function(*args, **kwargs, **dict(zip(free, values)))
            else:
                source = getattr(extend_func, "__name__", None) or repr(extend_func)
                raise errors.ConfigError(
                    f"Function: {function.__name__} accepts {len(parameters)} parameter(s), but needs to accept "
                    f"{len(values)} parameter(s) from: {source}, which returns "
                    f"({', '.join(type(value).__name__ for value in values)})."
                )
            return returned if result is None else result

        return extended

    return decorate


def make_iterable(obj: Any) -> tuple[Any, ...]:
    """Return a tuple as it is, and anything else, including a list, as a tuple of one."""
    return obj if type(obj) is tuple else (obj,)


@dataclass(frozen=True)
class constant(Generic[T]):
    """A loader always returning the same value: ``constant(model)() is model``."""

    value: T

    def __call__(self) -> T:
        """Return the value."""
        return self.value


def invoke(loader: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a loader."""
    return loader(*args, **kwargs)


def invoke_if_callable(func: T | Callable[..., T], *args: Any, **kwargs: Any) -> tuple[T, bool]:
    """Return the result of a callable or the value itself, and True if there was a call."""
    if callable(func):
        return func(*args, **kwargs), True
    return func, False


def value_of(obj: T | Callable[[], T]) -> T:
    """Return a loader's result, or the value itself."""
    return obj() if callable(obj) else obj


def constantmethod(func: F) -> F:
    """Mark a method as not changing its object."""
    return func


known_as(__name__, "func")
