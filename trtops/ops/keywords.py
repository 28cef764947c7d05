"""Options of an op's config as keywords of the op: ``convert(model, precision="fp16", data=feeds)``.

Flows have the same keywords (:func:`trtops.flows.flow_of.flow_of`), so an option is written once, in the config.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

from trtops import errors
from trtops.record import OptionField, Record, option_fields, with_options
from trtops.spec import BackendName

R = TypeVar("R")

PYTHON_ONLY = frozenset(
    ("tracker", "tags", "parent", "progress", "submit", "evaluate", "built", "convert_one", "file", "given", "chance",
     "opened")
)  # fmt: skip
"""Parameters of ops that take Python objects, or that only other ops set."""


def config_class_of(op: Callable[..., Any]) -> type[Record] | None:
    """Return the class of an op's ``config``; None for an op without one."""
    parameter = inspect.signature(op).parameters.get("config")
    if parameter is None:
        return None
    if isinstance(parameter.default, Record):
        return type(parameter.default)
    annotation = parameter.annotation
    if isinstance(annotation, str):  # a name that the op's module has imported
        annotation = inspect.unwrap(op).__globals__[annotation.partition("|")[0].strip()]
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    return next(kind for kind in kinds if issubclass(kind, Record))


def option_keywords(op: Callable[..., Any]) -> dict[str, OptionField]:
    """Return the options of an op's config by keyword.

    An option has the name of its field, or the ``keyword`` of the field's metadata. Of two options of one name, that of
    the nested record is prefixed by the record's name, such as ``check_seed``. An option of the config itself replaces
    an optional parameter of the op; a required parameter hides it.
    """
    accepted, config_class = inspect.signature(op).parameters, config_class_of(op)
    required = {name for name, parameter in accepted.items() if parameter.default is parameter.empty} - PYTHON_ONLY
    options: dict[str, OptionField] = {}
    # Options of outer records come first, so that these have the short names.
    for option in sorted(option_fields(config_class) if config_class else (), key=lambda option: len(option.path)):
        name = option.metadata.get("keyword", option.name)
        if len(option.path) > 1 and name in {*accepted, *options} - PYTHON_ONLY:
            name = "_".join((*option.path[:-1], name))
        if name not in required:
            options[name] = option
    return options


def takes_backend(op: Callable[..., Any]) -> bool:
    """True if ``backend`` is another keyword: the config has a build, and the op has no such parameter."""
    paths = {option.path for option in option_keywords(op).values()}
    return ("build", "options") in paths and "backend" not in inspect.signature(op).parameters


def configured(config: Any, values: Mapping[tuple[str, ...], Any], backend: BackendName | None = None) -> Any:
    """Return a config, or the default one of a class, with options set by path, and its build on a back end."""
    changed: Any = with_options(config, values)
    if backend is None:
        return changed
    # Last, since a config whose options are for this back end keeps them.
    return with_options(changed, {("build",): changed.build.on_backend(backend)})


def begins_with_config(op: Callable[..., Any]) -> bool:
    """True if a config is the op's first parameter, as for audit and diff_tactics: it says what they work on."""
    return next(iter(inspect.signature(op).parameters), None) == "config"


def leading_options(op: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Any]:
    """Return the keywords of positional arguments that stand for a config's first options.

    ``diff_tactics("<run>", "<run>")`` has two runs. Empty if the op or its arguments begin in another way.
    """
    if not args or isinstance(args[0], (Record, Mapping)) or not begins_with_config(op):
        return {}
    options = option_keywords(op)
    first = next(iter(options))
    return {first: args} if options[first].default == () else dict(zip(options, args))


def with_keywords(op: Callable[..., R]) -> Callable[..., R]:
    """Return an op that takes the options of its config as keywords, on top of a config if one is given.

    ``backend`` is the back end that builds the engine, for configs with a build. An op that begins with its config
    takes the config's first fields as positional arguments: ``diff_tactics("<run>")``.

    Raises:
        TypeError: A keyword is unknown. The message names the nearest one.
        ConfigError: A value has another type than its option.
    """
    signature, options, config_class = inspect.signature(op), option_keywords(op), config_class_of(op)
    assert config_class is not None
    default = signature.parameters["config"].default
    needs_config = begins_with_config(op)
    has_backend = takes_backend(op)
    known = [*options, *signature.parameters, *(["backend"] if has_backend else [])]

    @functools.wraps(op)
    def verb(*args: Any, **keywords: Any) -> R:
        for name in keywords:
            if name not in known:
                raise TypeError(f"{op.__name__}() has no option {name!r}. {errors.near(name, known)}".rstrip())
        if leading := leading_options(op, args):
            args, keywords = (), leading | keywords
        values = {option.path: keywords.pop(name) for name, option in options.items() if name in keywords}
        backend = keywords.pop("backend", None) if has_backend else None
        arguments = signature.bind_partial(*args, **keywords).arguments
        config = arguments.get("config", default)
        if config is None or config is inspect.Parameter.empty:
            is_needed = values or backend or needs_config
            config = configured(config_class, values, backend) if is_needed else None
        elif isinstance(config, Record):
            config = configured(config, values, backend)
        else:
            raise errors.ConfigError(
                f"{op.__name__}: config is {config!r:.60}; expected a {config_class.__name__}, or its options as "
                f"keywords, such as {next(name for name in ('precision', *options) if name in options)}=..."
            )
        return op(**{**arguments, "config": config})

    names = textwrap.fill(f"Options of the config, as keywords: {', '.join(known[: len(options)])}.", 100)
    verb.__doc__ = f"{inspect.getdoc(op)}\n\n{names}"
    return verb
