"""Extensions of the command line under Polygraphy's names: options and runners of ``run``, and tools of their own.

The entry point ``trtops.run.plugins`` of a package returns argument groups.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.metadata
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from trtops import comparator
from trtops.cli import groups, loading
from trtops.cli.flags import Group, Options, Parser, add_flag, flag, flags_of, make_parser
from trtops.cli.logs import LOGGING, logging_as
from trtops.cli.main import main as main
from trtops.cli.script import Call
from trtops.lazy import known_as
from trtops.metadata import DataType, TensorMetadata, TensorSpec

log = logging.getLogger(__name__)
known_as(__name__, "args", "base", "script", "util", "args.base", "args.util")


class BaseArgs:
    """A group of options, and loaders made from them: override the methods ending in ``_impl``.

    The first line of a docstring is the heading. ``group`` is argparse's, ``arg_groups`` has all groups by class.
    ``add_to_script_impl`` returns the loader that the options ask for.
    """

    def add_parser_args(self, parser: argparse.ArgumentParser, arg_groups: Mapping[type, Any]) -> None:
        self.arg_groups = arg_groups
        title, _, about = str(self.__doc__).strip().splitlines()[0].rpartition(":")
        self.group: Any = parser.add_argument_group(title.strip(), about.strip())
        self.add_parser_args_impl()

    def add_parser_args_impl(self) -> None: ...

    def parse_impl(self, args: Any) -> None: ...

    def add_to_script(self, script: Script, *args: Any, **kwargs: Any) -> Any:
        return self.add_to_script_impl(script, *args, **kwargs)  # type: ignore[attr-defined]


class BaseRunnerArgs(BaseArgs):
    """Options of a runner; ``get_name_opt_impl`` returns its name and its option, without dashes."""


class _OwnArgs(BaseArgs):
    """Options of trtops: one group in tools, all groups in ``run``.

    Their values are attributes under the names of the options, or under those that Polygraphy's group has.
    """

    FLAGS: ClassVar[tuple[Group, ...]] = ()
    VALUES: ClassVar[dict[str, Callable[[Options], Any]]] = {}

    def add_parser_args_impl(self) -> None:
        for _, option in flags_of(self.FLAGS):
            add_flag(self.group, option)

    def parse_impl(self, args: Any) -> None:
        self.args = args

    def __getattr__(self, name: str) -> Any:
        if name == "args" or name.startswith("_"):
            raise AttributeError(name)
        return self.VALUES[name](self.args) if name in self.VALUES else getattr(self.args, name)


class OnnxLoadArgs(_OwnArgs):
    """ONNX loading: the model, with the changes requested by options."""

    FLAGS = groups.ONNX

    def add_to_script(self, script: Script, *args: Any, **kwargs: Any) -> Any:
        return loading.onnx_model(self.args)


class DataLoaderArgs(_OwnArgs):
    """Input data: the feeds of models."""

    FLAGS = (groups.DATA,)

    def get_data_loader(self, user_input_metadata: TensorMetadata | None = None) -> Any:
        """Return the feeds; random ones have these inputs unless the line has shapes."""
        loader = loading.data_loader(self.args) or Call(comparator.DataLoader)
        random = {"input_metadata": user_input_metadata} if loader.function is comparator.DataLoader else {}
        return dataclasses.replace(loader, kwargs={**random, **loader.kwargs})()


def _option_group(name: str, about: str, *flags: Group, **values: Callable[[Options], Any]) -> Any:
    return type(name, (_OwnArgs,), {"__doc__": about, "FLAGS": flags, "VALUES": values})


ModelArgs = _option_group(
    "ModelArgs",
    "Model: its file, type and input shapes.",
    groups.MODEL,
    path=lambda args: args.model_file,
    model_type=loading.model_type,
    input_shapes=lambda args: TensorMetadata.of(
        TensorSpec(name, None, shape) for name, shape in (loading.input_shapes(args) or {}).items()
    ),
)
TrtConfigArgs = _option_group(
    "TrtConfigArgs",
    "TensorRT config: builder options.",
    profile_dicts=lambda args: [
        {name: (shape.min, shape.opt, shape.max) for name, shape in profile.items()}
        for profile in loading.profiles(args) or ()
    ],
    precision_constraints=lambda args: loading.constraints(args)[0],
    memory_pool_limits=lambda args: {f"trt.MemoryPoolType.{k.upper()}": v for k, v in args.pool_limit or ()},
)
TrtLoadPluginsArgs = _option_group("TrtLoadPluginsArgs", "TensorRT plugins: libraries.")
TrtLoadNetworkArgs = _option_group(
    "TrtLoadNetworkArgs",
    "TensorRT network: its options.",
    layer_precisions=lambda args: {k: f"trt.{DataType.of(v).name}" for k, v in args.layer_precisions or ()},
)
TrtSaveEngineBytesArgs = _option_group(
    "TrtSaveEngineBytesArgs", "TensorRT engine: its file.", path=lambda args: args.save_engine
)


class Script:
    """The imports and runners of an extension, for ``run`` or ``--gen-script``."""

    def __init__(self) -> None:
        self.runners: list[Call] = []
        self._modules: dict[str, str] = {}

    def add_import(self, imports: Iterable[str], frm: str | None = None, imp_as: str | None = None) -> None:
        self._modules.update({imp_as or name: f"{frm}.{name}" if frm else name for name in imports})

    def add_loader(self, loader: Call, loader_id: str = "") -> Call:
        """Return the argument for other calls taking this loader: the call, of what its name stands for."""
        first, dot, rest = str(loader.function).partition(".")
        module, _, name = (self._modules.get(first, first) + dot + rest).rpartition(".")
        return dataclasses.replace(loader, function=getattr(importlib.import_module(module), name))

    def add_runner(self, runner: Call) -> None:
        self.runners.append(self.add_loader(runner))


def make_invocable(type_str: Any, *args: Any, **kwargs: Any) -> Call:
    """Return a call of an imported name, for :class:`Script`; keyword arguments of None are left out."""
    return Call(type_str, args, {name: value for name, value in kwargs.items() if value is not None})


def get(args: Any, attr: str, default: Any = None) -> Any:
    """Return an option's value, or ``default`` if the command does not have the option."""
    return getattr(args, attr, default)


class Tool:
    """A command of its own: override ``run`` and the methods ending in ``_impl``; ``arg_groups`` are its groups."""

    def get_subscriptions_impl(self) -> list[BaseArgs]:
        return []

    def add_parser_args_impl(self, parser: argparse.ArgumentParser) -> None: ...

    def main(self) -> None:
        """Run the tool on this process' arguments, and exit with the code of ``run``."""
        parser = make_parser(sys.argv[0], str(self.__doc__).strip(), (LOGGING,), ())
        self.arg_groups = {type(group): group for group in self.get_subscriptions_impl()}
        for group in self.arg_groups.values():
            group.add_parser_args(parser, self.arg_groups)
        self.add_parser_args_impl(parser)
        if {"-h", "--help"} & {*sys.argv}:
            parser.print_help()
            sys.exit()
        args = parser.parse(sys.argv[1:])
        for group in self.arg_groups.values():
            group.parse_impl(args)
        with logging_as(args):
            sys.exit(self.run(args))  # type: ignore[attr-defined]


def extend(parser: Parser) -> None:
    """Add the options and runners of installed extensions to the parser of ``run``."""
    option_groups: list[Any] = [kind() for kind in _OwnArgs.__subclasses__()]
    builtin_count = len(option_groups)
    for entry in importlib.metadata.entry_points(group="trtops.run.plugins"):
        try:
            option_groups += entry.load()()
        except Exception as exc:
            log.warning("Failed to load plugin: %s. %s: %s", entry.name, type(exc).__name__, exc)
    arg_groups = {type(group): group for group in option_groups}
    parser.set_defaults(extensions=arg_groups)
    for group in option_groups[:builtin_count]:
        group.arg_groups = arg_groups
    for group in option_groups[builtin_count:]:
        group.add_parser_args(parser, arg_groups)
        if isinstance(group, BaseRunnerArgs):
            name, option = group.get_name_opt_impl()  # type: ignore[attr-defined]
            add_flag(group.group, flag(f"--{option}", name, takes="runner", to="runners", value=option, shown=None))


def runners(args: Options, option: str) -> list[Call]:
    """Return the runners of the extension with this option; none if there is no such extension."""
    arg_groups = (getattr(args, "extensions", None) or {}).values()
    script = Script()
    for group in arg_groups:
        if isinstance(group, BaseRunnerArgs) and group.get_name_opt_impl()[1] == option:  # type: ignore[attr-defined]
            for arg_group in arg_groups:
                arg_group.parse_impl(args)
            group.add_to_script(script)
    return script.runners
