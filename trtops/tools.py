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
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from trtops import comparator, errors
from trtops.backend import common, onnx, onnxrt, trt
from trtops.cli import groups, loading
from trtops.cli.flags import Flag, Group, Options, Parser, add_flag, flag, flags_of
from trtops.cli.logs import LOGGING, logging_as
from trtops.cli.main import main as main
from trtops.cli.script import Call, product
from trtops.lazy import known_as
from trtops.logger import G_LOGGER, Logger
from trtops.metadata import DataType, TensorMetadata, TensorSpec

log = logging.getLogger(__name__)
known_as(__name__, "args", "base", "script", "util", "args.base", "args.util", "args.model", "args.logger", "base.tool")


class BaseArgs:
    """A group of options, and loaders made from them: override the methods ending in ``_impl``.

    The first line of a docstring is the heading. ``group`` is argparse's, ``arg_groups`` has all groups by class.
    ``add_to_script_impl`` returns the loader that the options ask for.
    """

    def register(self, arg_groups: Mapping[type, Any]) -> None:
        self.arg_groups = arg_groups

    def add_parser_args(self, parser: argparse.ArgumentParser) -> None:
        title, _, about = str(self.__doc__).strip().splitlines()[0].rpartition(":")
        self.group: Any = parser.add_argument_group(title.strip(), about.strip())
        self.add_parser_args_impl()

    def add_parser_args_impl(self) -> None: ...

    def parse(self, args: Any) -> None:
        self.parse_impl(args)

    def parse_impl(self, args: Any) -> None: ...

    def add_to_script(self, script: Script, *args: Any, **kwargs: Any) -> Any:
        return self.add_to_script_impl(script, *args, **kwargs)  # type: ignore[attr-defined]


class BaseRunnerArgs(BaseArgs):
    """Options of a runner; ``get_name_opt_impl`` returns its name and its option, without dashes."""


class _ToolOptions(Options):
    """The options of a tool; those of groups that it does not have are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)


class _OwnArgs(BaseArgs):
    """Options of trtops: its groups in tools, all groups in ``run``.

    Their values are attributes under the names of the options, or under those that Polygraphy's group has.
    """

    FLAGS: ClassVar[tuple[Group, ...]] = ()
    VALUES: ClassVar[dict[str, Callable[[Options], Any]]] = {}

    def add_parser_args_impl(self) -> None:
        for _, option in flags_of(self.FLAGS):
            if self.group._option_string_actions.keys().isdisjoint(option.names):  # Polygraphy's groups share none
                add_flag(self.group, option)

    def parse_impl(self, args: Any) -> None:
        self.args = args if isinstance(args, Options) else _ToolOptions(**vars(args))

    def __getattr__(self, name: str) -> Any:
        if name in ("args", "group", "arg_groups") or name.startswith("_"):
            raise AttributeError(name)
        return self.VALUES[name](self.args) if name in self.VALUES else getattr(self.args, name)


def _path_option(
    dest: str, about: str, name: str | bool | None, short_name: str | bool | None, required: bool = False
) -> list[Flag]:
    """Return the option of a path, or nothing if its name is False."""
    if name is False:
        return []
    names = [] if short_name is False else [str(short_name or "-o")]
    usage = " ".join([*names, f"--{name or 'output'}", "FILE"])
    return [flag(usage, about, to=dest, required=required)]


class LoggerArgs(_OwnArgs):
    """Log: what is logged, and where."""

    FLAGS = (LOGGING.without("--help"),)

    def get_logger(self) -> Logger:
        """Return the log."""
        return G_LOGGER


class ModelArgs(_OwnArgs):
    """Model: its file, type and input shapes."""

    VALUES: ClassVar[dict[str, Callable[[Options], Any]]] = {
        "path": lambda args: args.model_file,
        "model_type": loading.model_type,
        "input_shapes": lambda args: TensorMetadata.of(
            TensorSpec(name, None, shape) for name, shape in (loading.input_shapes(args) or {}).items()
        ),
    }

    def __init__(
        self,
        model_opt_required: bool | None = None,
        required_model_type: str | None = None,
        input_shapes_opt_name: str | bool | None = None,
        input_shapes_opt_doc: str | None = None,
    ) -> None:
        """Choose options: a model that must be given, of one type; another name for input shapes, or False for none."""
        self.required_model_type = required_model_type
        model, kind, shapes, _ = groups.MODEL.flags
        model = dataclasses.replace(model, takes="one" if model_opt_required else "optional")
        shapes = dataclasses.replace(shapes, dest="input_shapes", help=input_shapes_opt_doc or shapes.help)
        if isinstance(input_shapes_opt_name, str):
            shapes = dataclasses.replace(shapes, names=(f"--{input_shapes_opt_name}",))
        members = (
            model,
            *(() if required_model_type else (kind,)),
            *(() if input_shapes_opt_name is False else (shapes,)),
        )
        self.FLAGS = (Group("model", *members),)  # type: ignore[misc]

    def parse_impl(self, args: Any) -> None:
        super().parse_impl(args)
        if self.required_model_type is not None and self.args.model_file is not None:
            errors.check_known(loading.model_type(self.args), [self.required_model_type], "The model's type:")


class OnnxInferShapesArgs(_OwnArgs):
    """ONNX shape inference: whether shapes are inferred."""

    FLAGS = (groups.ONNX_SHAPE,)

    def infer_shapes(self, model: Any, force: bool | None = None) -> Any:
        """Return a model with inferred shapes, if the options or ``force`` ask for them."""
        if not (force or self.args.shape_inference):
            return model
        return onnx.infer_shapes(model, allow_onnxruntime=not self.args.no_onnxruntime_shape_inference)


class OnnxLoadArgs(_OwnArgs):
    """ONNX loading: the model, with the changes requested by options."""

    def __init__(
        self,
        allow_saving: bool = False,
        outputs_opt_prefix: str | bool | None = None,
        allow_shape_inference: bool = True,
    ) -> None:
        """Choose options: the prefix of those for outputs (default: ``onnx-``), or False for none."""
        outputs = [] if outputs_opt_prefix is False else list(groups.ONNX_OUTPUTS.flags)
        if isinstance(outputs_opt_prefix, str):
            outputs = [
                dataclasses.replace(option, names=(option.names[0].replace("--onnx-", f"--{outputs_opt_prefix}"),))
                for option in outputs[:3]
            ]
        self.FLAGS = (  # type: ignore[misc]
            groups.ONNX_LOAD,
            Group(groups.ONNX_OUTPUTS.title, *outputs),
            *((groups.ONNX_SHAPE,) if allow_shape_inference else ()),
            *(
                (Group("", flag("--save-onnx FILE", "where to write the model"), groups.SAVE_AS),)
                if allow_saving
                else ()
            ),
        )

    def add_to_script(self, script: Script, *args: Any, **kwargs: Any) -> Any:
        return loading.onnx_model(self.args)

    def load_onnx(self) -> Any:
        """Return the model."""
        return loading.onnx_model(self.args)()


class OnnxSaveArgs(_OwnArgs):
    """ONNX saving: where a model is written."""

    VALUES: ClassVar[dict[str, Callable[[Options], Any]]] = {"path": lambda args: args.output}

    def __init__(
        self,
        output_opt: str | bool | None = None,
        output_short_opt: str | bool | None = None,
        output_opt_required: bool = False,
    ) -> None:
        """Name the option of the path (default: ``--output`` and ``-o``; False for none)."""
        option = _path_option("output", "where to write the model", output_opt, output_short_opt, output_opt_required)
        self.FLAGS = (Group("", *option, groups.SAVE_AS),)  # type: ignore[misc]

    def save_onnx(self, model: Any, path: str | None = None) -> Any:
        """Write a model to ``path`` (default: that of the option), and return it."""
        target = path or self.args.output
        return model if target is None else loading.saved_onnx(model, target, self.args)()


class OnnxrtSessionArgs(_OwnArgs):
    """ONNX Runtime: its sessions."""

    FLAGS = (groups.PROVIDERS,)

    def load_onnxrt_session(self, model: Any = None) -> Any:
        """Return a session for a model (default: that of the options)."""
        source = self.arg_groups[OnnxLoadArgs].load_onnx() if model is None else model
        data = source if isinstance(source, bytes) else onnx.bytes_from_onnx(source)
        return onnxrt.session_from_onnx(data, **loading.session_options(self.args))


class DataLoaderArgs(_OwnArgs):
    """Input data: the feeds of models."""

    FLAGS = (groups.DATA,)

    def get_data_loader(self, user_input_metadata: TensorMetadata | None = None) -> Any:
        """Return the feeds; random ones have these inputs unless the line has shapes."""
        loader = loading.data_loader(self.args) or Call(comparator.DataLoader)
        random = {"input_metadata": user_input_metadata} if loader.function is comparator.DataLoader else {}
        return dataclasses.replace(loader, kwargs={**random, **loader.kwargs})()

    def is_using_random_data(self) -> bool:
        """Whether the feeds are random."""
        return not (self.args.load_inputs or self.args.data_loader_script)


class ComparatorCompareArgs(_OwnArgs):
    """Comparison: compare functions and tolerances."""

    FLAGS = (groups.COMPARING, groups.THRESHOLDS)

    def build_compare_funcs(self) -> list[Any]:
        """Return the compare functions."""
        return list(map(product, loading.compare_functions(self.args)))


class TrtConfigArgs(_OwnArgs):
    """TensorRT config: builder options."""

    FLAGS = (groups.TRT_SHAPES, groups.PRECISIONS, groups.TRT_TACTICS, groups.TRT_CONFIG)
    VALUES: ClassVar[dict[str, Callable[[Options], Any]]] = {
        "profile_dicts": lambda args: [
            {name: (shape.min, shape.opt, shape.max) for name, shape in profile.items()}
            for profile in loading.profiles(args) or ()
        ],
        "precision_constraints": lambda args: loading.constraints(args)[0],
        "memory_pool_limits": lambda args: {f"trt.MemoryPoolType.{k.upper()}": v for k, v in args.pool_limit or ()},
    }

    def create_config(self, builder: Any, network: Any) -> Any:
        """Return the builder config for a network."""
        return loading.builder_config(self.args)(builder, network)


class TrtLoadPluginsArgs(_OwnArgs):
    """TensorRT plugins: libraries."""

    FLAGS = (groups.TRT_PARSE.only("plugins"),)


class TrtOnnxFlagArgs(_OwnArgs):
    """TensorRT parser: flags of the parser for ONNX."""

    FLAGS = (groups.TRT_PARSE.without("--plugins"),)


class TrtLoadNetworkArgs(_OwnArgs):
    """TensorRT network: its options."""

    FLAGS = (groups.TRT_NETWORK, groups.TRT_OUTPUTS)
    VALUES: ClassVar[dict[str, Callable[[Options], Any]]] = {
        "layer_precisions": lambda args: {k: f"trt.{DataType.of(v).name}" for k, v in args.layer_precisions or ()},
    }

    def load_network(self) -> Any:
        """Return the builder and network, with the parser if there is one."""
        return loading.network(self.args)()


class TrtSaveEngineBytesArgs(_OwnArgs):
    """TensorRT engine: its file."""

    VALUES: ClassVar[dict[str, Callable[[Options], Any]]] = {"path": lambda args: args.save_engine}

    def __init__(self, output_opt: str | bool | None = None, output_short_opt: str | bool | None = None) -> None:
        """Name the option of the path (default: ``--output`` and ``-o``; False for none)."""
        option = _path_option("save_engine", "where to save the engine", output_opt, output_short_opt)
        self.FLAGS = (Group("", *option),)  # type: ignore[misc]

    def save_engine_bytes(self, engine_bytes: Any, path: str | None = None) -> Any:
        """Write a serialized engine to ``path`` (default: that of the option), and return it."""
        target = path or self.args.save_engine
        return engine_bytes if target is None else common.save_bytes(engine_bytes, target)


class TrtSaveEngineArgs(_OwnArgs):
    """TensorRT engine: its file, by the option of TrtSaveEngineBytesArgs."""

    VALUES: ClassVar[dict[str, Callable[[Options], Any]]] = {"path": lambda args: args.save_engine}

    def save_engine(self, engine: Any, path: str | None = None) -> Any:
        """Write an engine to ``path`` (default: that of the option), and return it."""
        target = path or self.args.save_engine
        return engine if target is None else trt.save_engine(engine, target)


class TrtLoadEngineBytesArgs(_OwnArgs):
    """TensorRT engine: building or reading it."""

    def load_engine_bytes(self) -> Any:
        """Return the serialized engine: built, or the model's file."""
        is_engine = loading.model_type(self.args) == "engine"
        return common.bytes_from_path(self.args.model_file) if is_engine else loading.engine_bytes(self.args)()


class TrtLoadEngineArgs(_OwnArgs):
    """TensorRT engine: loading it."""

    FLAGS = (groups.TRT_LOAD,)

    def load_engine(self) -> Any:
        """Return the engine: built, or loaded from the model's file."""
        return loading.engine(self.args)()


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
    """A command of its own: override ``run_impl`` and other methods ending in ``_impl``.

    ``arg_groups`` are its groups of options by class; its docstring is the help.
    """

    def __init__(self, name: str | None = None) -> None:
        """Name the command; one without subcommands needs no name."""
        self.name = name
        self.arg_groups: dict[type, BaseArgs] = {}

    def get_subscriptions_impl(self) -> list[BaseArgs]:
        return []

    def get_subtools_impl(self) -> tuple[str, list[Tool]]:
        """Return a title, and the commands below this one."""
        return "", []

    def add_parser_args_impl(self, parser: argparse.ArgumentParser) -> None: ...

    def setup_parser(self, subparsers: Any = None) -> argparse.ArgumentParser:
        """Return the tool's parser: a new one, or one of ``subparsers``, whose ``subcommand`` is this tool."""
        about = textwrap.dedent(str(self.__doc__)).strip()
        options: dict[str, Any] = {"description": about, "formatter_class": argparse.RawDescriptionHelpFormatter}
        if subparsers is None:
            parser = argparse.ArgumentParser(**options)
        else:
            parser = subparsers.add_parser(self.name, help=about.partition("\n\n")[0], **options)
            parser.set_defaults(subcommand=self)
        self.arg_groups = {type(group): group for group in (LoggerArgs(), *self.get_subscriptions_impl())}
        for group in self.arg_groups.values():
            group.register(self.arg_groups)
            group.add_parser_args(parser)
        self.add_parser_args_impl(parser)
        title, subtools = self.get_subtools_impl()
        if subtools:
            below = parser.add_subparsers(title=title, dest="subtool", required=True)
            for subtool in subtools:
                subtool.setup_parser(below)
        return parser

    def parse(self, args: Any) -> None:
        """Let all groups read the options."""
        for group in self.arg_groups.values():
            group.parse(args)

    def run(self, args: Any) -> int:
        """Run the tool, once the options are read, and return its exit code."""
        with logging_as(self.arg_groups[LoggerArgs].args):  # type: ignore[attr-defined]
            return self.run_impl(args) or 0

    def run_impl(self, args: Any) -> int | None:
        """Run the tool, and return its exit code."""
        raise NotImplementedError(f"{type(self).__name__} has no run_impl, which does the tool's work.")

    def main(self) -> None:
        """Run the tool on this process' arguments, and exit with its exit code."""
        args = self.setup_parser().parse_args()
        self.parse(args)
        sys.exit(self.run(args))


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
    for group in option_groups:
        group.register(arg_groups)
    for group in option_groups[builtin_count:]:
        group.add_parser_args(parser)
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
                arg_group.parse(args)
            group.add_to_script(script)
    return script.runners
