"""PyTorch modules: opened from scripts, programs and objects, identified by content, and run as the reference."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import io
import itertools
import logging
import os
import re
import sys
import traceback
import types
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops import errors
from trtops.backend.common import import_from_script
from trtops.backend.torch import PICKLED, model_stem
from trtops.extras import require
from trtops.record import sha256_file
from trtops.system.allowed import check_file, split_script
from trtops.terminal import one_line
from trtops.torch_tensors import from_torch, to_torch

if TYPE_CHECKING:
    from trtops.backend.runner import Feed


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Leave out torch's progress, warnings, graphs and tracebacks."""
    disabled = logging.root.manager.disable
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        try:
            yield
        finally:
            logging.disable(disabled)


@dataclass(frozen=True)
class TorchModel:
    """A module in evaluation mode and FP32, or a program of ``torch.export``, which has its own mode and types."""

    source: str  # as given, or the class of an object
    name: str  # of files that are made from it
    module: Any
    program: Any = None  # torch.export.ExportedProgram
    file: Path | None = field(default=None, compare=False)  # of a program
    is_object: bool = False  # of Python, which no command can name

    @classmethod
    def open(cls, value: Any) -> TorchModel:
        """Open a module; ConfigError if it is something else, or its script may not run."""
        source, name, file = type(value).__name__, type(value).__name__, None
        is_object = not isinstance(value, (str, os.PathLike))
        script = function = ""
        if not is_object:
            source = os.fspath(value)
            script, function = split_script(source)
            path = Path(script)
            name, file = model_stem(source), None if function else path
            if not path.is_file():
                raise errors.InvalidModelError(f"{path.absolute()} does not exist; expected a PyTorch model.")
            if path.suffix in PICKLED:
                raise errors.ConfigError(
                    f"{source} is a pickle, which is not read, since it can run any code. Give a script that loads it "
                    "(script.py:function), or save a program: torch.export.save(torch.export.export(module, "
                    "example_inputs), 'model.pt2')."
                )
            # A program may hold pickled constants, so that it counts as code.
            check_file(path, "script" if function else "PyTorch program")
        require("torch", "onnxscript")
        import torch

        if function:
            value = _returned_by(script, function)
        elif file is not None:
            try:
                with quiet():
                    value = torch.export.load(file)
            except Exception as exc:
                reason = str(exc).partition(" Please check the warnings")[0]
                raise errors.InvalidModelError(f"{source} is not a program of torch.export: {reason}") from None
        if isinstance(value, torch.export.ExportedProgram):
            return cls(source, name, value.module(check_guards=False), value, file, is_object)
        if isinstance(value, torch.jit.ScriptModule) or not isinstance(value, torch.nn.Module):
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            verb = "returns" if function else "is"
            raise errors.ConfigError(
                f"{source} {verb} a {kind}; expected a torch.nn.Module or a program of torch.export."
            )
        try:
            # Converting a module in place would move the caller's own weights as well.
            tensors = itertools.chain(value.parameters(), value.buffers())
            module = _copied(value, {id(tensor): _converted(tensor) for tensor in tensors})
        except Exception as exc:
            raise errors.ConfigError(
                f"{source} cannot be copied to the CPU in FP32: {type(exc).__name__}: {exc}. Expected a module that "
                "copy.deepcopy copies, and whose weights have values."
            ) from exc
        return cls(source, name, module.eval(), is_object=is_object)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in order: parameters of ``forward``, or inputs of the program."""
        if self.program is not None:
            return tuple(map(str, self.program.graph_signature.user_inputs))
        parameters = inspect.signature(self.module.forward).parameters.values()
        return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))

    @property
    def signature(self) -> str:
        """The module's class with the parameters of its ``forward``."""
        if self.program is not None:
            return f"a program with the inputs {', '.join(self.inputs)}"
        return f"{type(self.module).__name__}.forward{inspect.signature(self.module.forward)}"

    def digest(self) -> str:
        """SHA-256 over sources, weights and attributes, as 64 hexadecimal digits."""
        if self.file is not None:
            return sha256_file(self.file)
        sha = hashlib.sha256()
        for name, tensor in self.module.state_dict().items():
            array = np.ascontiguousarray(from_torch(tensor))
            sha.update(f"{name}\0{array.dtype}\0{array.shape}\0".encode())
            sha.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
        if self.program is not None:
            sha.update(str(self.program.graph).encode())
            return sha.hexdigest()
        kinds = dict.fromkeys(kind for part in self.module.modules() for kind in type(part).__mro__)
        for text in _sources(kinds):
            sha.update(text)
        for path, part in self.module.named_modules():
            sha.update(f"{path}\0{type(part).__qualname__}\0{part}".encode())
            for name, value in sorted(vars(part).items()):
                if name[0] != "_" and name != "training":
                    content = from_torch(value).tobytes() if hasattr(value, "detach") else repr(value).encode()
                    sha.update(re.sub(rb" at 0x[0-9a-f]+", b"", name.encode() + b"\0" + content))
        return sha.hexdigest()

    def fresh(self) -> Any:
        """Return a copy of the module that shares its weights, and has buffers and attributes of its own."""
        return _copied(self.module, {id(parameter): parameter for parameter in self.module.parameters()})

    def run(self, feed: Feed, module: Any = None, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
        """Run a fresh copy, or the given module, on inputs by name; return copies of the outputs by name.

        InferenceError if the module does not run.
        """
        import torch

        module = self.fresh() if module is None else module
        tensors = {name: to_torch(np.array(feed[name])) for name in self.inputs if name in feed}
        torch.manual_seed(seed)
        with torch.no_grad():
            outputs = self._call(module, tensors)
        return {name: from_torch(tensor).copy() for name, tensor in named_tensors(outputs)}

    def example(self) -> dict[str, np.ndarray[Any, Any]]:
        """The inputs that a program was exported with; empty without a program, or if they are no tensors."""
        from torch.utils import _pytree

        values = [] if self.program is None else _pytree.tree_leaves(self.program.example_inputs)
        return {name: from_torch(value) for name, value in zip(self.inputs, values) if hasattr(value, "detach")}

    def watch(self, feed: Feed) -> dict[str, list[np.ndarray[Any, Any]]]:
        """Run on inputs, and return the results of each module inside by path, in the order in which they end."""
        import torch

        module = self.fresh() if self.program is None else torch.export.unflatten(self.program)
        results: dict[str, list[np.ndarray[Any, Any]]] = {}

        def keep(path: str) -> Any:
            def hook(part: Any, inputs: Any, outputs: Any) -> None:
                # Of several calls the first, as one result of several may not be an output of the module.
                results.setdefault(path, [from_torch(tensor).copy() for _, tensor in named_tensors(outputs)])

            return hook

        for path, part in module.named_modules():
            part.register_forward_hook(keep(path))
        self.run(feed, module)
        return results

    def kept_state(self, feed: Feed) -> dict[str, np.ndarray[Any, Any]]:
        """Return the state that a call leaves and later calls depend on, by path: buffers, tensors in attributes."""
        module = self.fresh()
        before = {path: tensor.clone() for path, tensor in _state(module)}
        first = self.run(feed, module)
        after = {path: tensor.clone() for path, tensor in _state(module)}
        changed = {p: t for p, t in after.items() if p not in before or not t.equal(before[p])}
        if not changed:
            return {}
        again = self.run(feed, module)
        # The same inputs write the same entries of a cache, so that only other values in it show its use.
        for path, tensor in _state(module):
            if path in changed and tensor.is_floating_point():
                tensor.detach().add_(1)
        moved = self.run(feed, module)
        depends = any(not np.array_equal(first[n], other[n]) for other in (again, moved) for n in first)
        return {path: from_torch(tensor) for path, tensor in changed.items()} if depends else {}

    def training(self) -> list[str]:
        """The batch normalizations of a program that compute as in training, by path."""
        paths = []
        for node in () if self.program is None else self.program.graph.nodes:
            if (
                "batch_norm" in str(node.target)
                and len(node.args) > 5
                and node.args[5] is True
                and node.args[3] is not None
            ):
                stack = list(node.meta.get("nn_module_stack", {}).values())
                paths.append(f"module {stack[-1][0]!r}" if stack else node.name)
        return paths

    def _call(self, module: Any, tensors: Mapping[str, Any]) -> Any:
        from torch.utils import _pytree

        try:
            if self.program is None:
                outputs = module(**tensors)
            else:
                arguments, keywords = _pytree.tree_unflatten(list(tensors.values()), self.program.call_spec.in_spec)
                outputs = module(*arguments, **keywords)
        except Exception as exc:
            shapes = ", ".join(f"{name} {str(t.dtype)[6:]} {[*t.shape]}" for name, t in tensors.items())
            raise errors.InferenceError(
                f"The module of {self.source} does not run on {shapes}{error_place(module, exc)}: "
                f"{type(exc).__name__}: {one_line(str(exc))[:300]}"
            ) from exc
        if not any(True for _ in named_tensors(outputs)):
            raise errors.UnsupportedFeatureError(f"The module of {self.source} returns no tensor.")
        return outputs


def frame_place(frame: Any, names: Mapping[int, str]) -> str:
    """Return the line of a frame outside of torch, with the module's path of ``names``; empty for other frames."""
    file = frame.f_code.co_filename
    is_ours = frame.f_globals.get("__name__", "").startswith("trtops.")
    if "-packages" in file or file.startswith("<") or is_ours:
        return ""
    owner = names.get(id(frame.f_locals.get("self")))
    return f"at {Path(file).name}:{frame.f_lineno}{f' (module {owner})' if owner else ''}"


def error_place(module: Any, exc: BaseException) -> str:
    """Return the line of a module that raised an error, after a space; empty if none did."""
    names, place = {id(part): path for path, part in module.named_modules()}, ""
    cause: BaseException | None = exc
    while cause is not None:
        for frame, _ in traceback.walk_tb(cause.__traceback__):
            if id(frame.f_locals.get("self")) in names:
                place = frame_place(frame, names) or place
        cause = cause.__cause__ or cause.__context__
    return place and f" {place}"


def named_tensors(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a result in order, named by keys, fields and positions; ``output`` for a single one."""
    import torch

    if isinstance(value, torch.Tensor):
        yield name or "output", value
    elif value is None or isinstance(value, (bool, int, float, str)):
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_tensors(item, f"{name}_{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        keys = getattr(value, "_fields", None) or [f"{name or 'output'}_{index}" for index in range(len(value))]
        for key, item in zip(keys, value):
            yield from named_tensors(item, key)
    else:
        raise errors.UnsupportedFeatureError(
            f"The module returns a {type(value).__name__}; expected tensors, or lists, tuples and mappings of them."
        )


def _state(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield a module's tensors other than parameters, by path: buffers, and tensors in attributes."""
    import torch
    from torch.utils import _pytree

    for path, part in module.named_modules():
        attributes = {name: value for name, value in vars(part).items() if not name.startswith("_")}
        for name, value in (*part._buffers.items(), *attributes.items()):
            for index, leaf in enumerate(_pytree.tree_leaves(value)):
                if isinstance(leaf, torch.Tensor):
                    yield ".".join(filter(None, (path, name))) + f"[{index}]" * bool(index), leaf


def _converted(tensor: Any) -> Any:
    """Return a tensor of a module on the CPU, floating-point numbers in FP32; its memory is shared if possible."""
    import torch

    moved = tensor.detach().to("cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype)
    return torch.nn.Parameter(moved, requires_grad=False) if isinstance(tensor, torch.nn.Parameter) else moved


def _copied(module: Any, tensors: dict[int, Any]) -> Any:
    """Return a copy that has tensors, by the id of its own ones."""
    with warnings.catch_warnings():  # of torch's own classes, for each copy of a program
        warnings.simplefilter("ignore")
        return copy.deepcopy(module, tensors)


def _returned_by(script: str, name: str) -> Any:
    """Return the module of a script, or the result of its function; ConfigError if the script fails."""
    import torch

    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for results
            value = import_from_script(script, name)
            return value if isinstance(value, torch.nn.Module) else value()
    except errors.TrtopsError:
        raise
    except (Exception, SystemExit) as exc:
        file = os.path.abspath(script)
        lines = [frame.lineno for frame in traceback.extract_tb(exc.__traceback__) if frame.filename == file]
        place = f" at {Path(script).name}:{lines[-1]}" if lines else ""
        raise errors.ConfigError(
            f"{script}:{name} returns no module{place}: {type(exc).__name__}: {one_line(str(exc))}. Expected a "
            "function without parameters, or a module."
        ) from exc


def _sources(kinds: Mapping[type, None]) -> Iterator[bytes]:
    """Yield the code of classes: files of their folders outside of installed packages, or the functions themselves."""
    folders = set[str]()
    for kind in kinds:
        module = sys.modules.get(kind.__module__)
        file = getattr(module, "__file__", None)
        if kind.__module__.partition(".")[0] in sys.stdlib_module_names or "-packages" in str(file):
            continue
        if file is not None:
            folders.add(os.path.dirname(os.path.abspath(file)))
        else:
            for function in vars(kind).values():
                if isinstance(function, types.FunctionType):
                    yield repr((function.__code__.co_code, function.__code__.co_consts)).encode()
    files = {str(getattr(module, "__file__", None)) for module in [*sys.modules.values()]}
    for path in sorted(files):
        if os.path.dirname(os.path.abspath(path)) in folders and os.path.isfile(path):
            yield Path(path).read_bytes()
