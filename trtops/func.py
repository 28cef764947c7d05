"""Small tools to compose loaders: extend one with a function, make one of a value, call one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, cast

from trtops import errors
from trtops.lazy import known_as

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def extend(extend_func: Callable[P, Any]) -> Callable[[Callable[..., Any]], Callable[P, Any]]:
    """A decorator: the decorated function continues where ``extend_func`` ended.

    Calling the result calls ``extend_func``, passes what it returned to the decorated function (a tuple as separate
    arguments), and returns what that returned, or, if that was None, what ``extend_func`` returned::

        @func.extend(NetworkFromOnnxPath("model.onnx"))
        def load_network(builder, network, parser):
            network.name = "mine"

        builder, network, parser = load_network()

    A decorated function that has room for the arguments of ``extend_func`` as well gets those first. One without
    parameters goes with an ``extend_func`` that returns None.

    Args:
        extend_func: What to extend: a function or a loader. What it returns may be changed in place.

    Raises:
        ConfigError: When decorating, if the function has variadic parameters; when called, if it does not take as many
            arguments as ``extend_func`` returned.
    """

    def decorate(function: Callable[..., Any]) -> Callable[P, Any]:
        parameters = list(inspect.signature(function).parameters.values())
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
            raise errors.ConfigError(
                f"{_function_name(function)} has *args or **kwargs; expected one named parameter for each value that "
                f"{_function_name(extend_func)} returns."
            )
        required = sum(p.default is p.empty for p in parameters)

        def takes(count: int) -> bool:
            return required <= count <= len(parameters)

        @functools.wraps(function)
        def extended(*args: P.args, **kwargs: P.kwargs) -> Any:
            returned = extend_func(*args, **kwargs)
            values = make_iterable(returned)
            if takes(len(values)):
                result = function(*values)
            elif takes(len(args) + len(kwargs) + len(values)):
                free = [p.name for p in parameters[len(args) :] if p.name not in kwargs]
                result = function(*args, **kwargs, **dict(zip(free, values)))
            elif returned is None and not parameters:
                result = function()
            else:
                types = ", ".join(type(value).__name__ for value in values)
                raise errors.ConfigError(
                    f"{_function_name(function)} takes {len(parameters)} arguments; expected {len(values)}, since "
                    f"{_function_name(extend_func)} returns ({types})."
                )
            return returned if result is None else result

        return extended

    return decorate


def make_iterable(obj: Any) -> tuple[Any, ...]:
    """A tuple as it is, and anything else (a list too) as a tuple of one."""
    return obj if type(obj) is tuple else (obj,)


@dataclass(frozen=True)
class constant(Generic[T]):
    """A loader that returns a value at hand: ``constant(model)() is model``.

    Attributes:
        value: What every call returns; shared, not copied.
    """

    value: T

    def __call__(self) -> T:
        """The value."""
        return self.value


def invoke(loader: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a loader; for places that want a function, such as ``map(invoke, loaders)``."""
    return loader(*args, **kwargs)


def invoke_if_callable(obj: T | Callable[..., T], *args: Any, **kwargs: Any) -> tuple[T, bool]:
    """Call what can be called, and pass through what cannot.

    Returns:
        The product or the value itself, and whether there was a call. A product is the caller's own; a value still
        belongs to whoever gave it.
    """
    if callable(obj):
        return obj(*args, **kwargs), True
    return obj, False


def value_of(obj: T | Callable[[], T]) -> T:
    """What a loader makes, or the value itself."""
    return invoke_if_callable(obj)[0]


def constantmethod(func: F) -> F:
    """Marks a method that leaves its object unchanged. Says so to the reader; frozen dataclasses enforce it."""
    return func


def _function_name(function: object) -> str:
    return cast(str, getattr(function, "__name__", None) or repr(function))


known_as(__name__, "func")
