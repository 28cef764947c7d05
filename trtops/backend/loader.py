"""The base class of loaders, and functions to create a loader and call it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

ValueOrCallable: TypeAlias = T | Callable[[], T]
"""A loader's source: a product, which stays the caller's, or a callable whose product the loader owns."""


class BaseLoader(Generic[T]):
    """Base class of loaders: calling one calls :meth:`call_impl`; subclasses override this method."""

    def call_impl(self, *args: Any, **kwargs: Any) -> T:
        """Make the product."""
        raise NotImplementedError(f"{type(self).__name__} has no call_impl, which makes the loader's product.")

    def __call__(self, *args: Any, **kwargs: Any) -> T:
        """Make the product."""
        return self.call_impl(*args, **kwargs)


def immediately(loader: Callable[P, BaseLoader[T]]) -> Callable[P, T]:
    """Return the function of a loader's class: it has the class's name in snake_case, and takes the same arguments."""

    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return loader(*args, **kwargs)()

    function: Any = call
    loader_class: Any = loader
    function.__name__ = function.__qualname__ = re.sub(r"(?<!^)(?=[A-Z])", "_", loader_class.__name__).lower()
    function.__module__ = loader_class.__module__
    function.__doc__ = f"Create a :class:`{loader_class.__name__}` and call it."
    function.__signature__ = inspect.signature(loader_class).replace(
        return_annotation=inspect.signature(loader_class.call_impl).return_annotation
    )
    return call
