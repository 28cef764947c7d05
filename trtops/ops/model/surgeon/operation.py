"""What all verbs of the surgeon share: the model that they change, and what they give back."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx

from trtops import errors
from trtops.backend.onnx import external, walk
from trtops.backend.onnx.model import Model
from trtops.backend.onnx.parsing import read_proto
from trtops.backend.onnx.save import save_model
from trtops.backend.onnx.summary import summary
from trtops.logger import ON_STDOUT
from trtops.ops.model.opening import Source
from trtops.ops.model.saving import SaveConfig
from trtops.record import Record

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SurgeonResult(Record):
    """A new model, and what was done.

    Attributes:
        path: Where it was written; None if it was not.
        nodes_before: Nodes before, those of sub-graphs and functions included.
        nodes: Nodes now.
        changes: What was done, in sentences.
    """

    path: str | None
    nodes_before: int
    nodes: int
    changes: tuple[str, ...]
    _proto: Any = field(default=None, repr=False, compare=False)

    @property
    def model(self) -> onnx.ModelProto:
        """The new model, with its weights inside.

        Raises:
            ConfigError: If this result was read from JSON, which does not hold the model.
        """
        if self._proto is None:
            raise errors.ConfigError(
                f"This result was read from a file, without its model; load {self.path!r} instead."
            )
        proto: onnx.ModelProto = self._proto
        return proto

    def text(self) -> str:
        """What was done, for a terminal."""
        wrote = "" if self.path is None else f" Wrote {self.path}"
        return "\n".join([*self.changes, f"{self.nodes_before} nodes before, {self.nodes} now.{wrote}"])


def operate(
    model: Source,
    output: str | Path | None,
    save_as: SaveConfig | None,
    change: Callable[[onnx.ModelProto], list[str] | tuple[onnx.ModelProto, list[str]]],
) -> SurgeonResult:
    """Change a copy of a model, and write it.

    Args:
        model: The model; not changed.
        output: Where to write the new one; None does not.
        save_as: Where weights go.
        change: Changes the copy, whose weights are inside, and says what it did in sentences; it may give another model
            with them.

    Raises:
        ModelError: If the model cannot be read, or its external data is missing.
        ConfigError: If ``output`` or its weights are a file of the model itself.
    """
    proto, files = load_with_weights(model)
    save_as = save_as or SaveConfig()
    if output is not None:
        _check_output(Path(output), files, save_as)
    before = count_nodes(proto)
    _tell_model("Original Model", proto)
    done = change(proto)
    proto, changes = done if isinstance(done, tuple) else (proto, done)
    if output is not None:
        log.info("Saving ONNX model to: %s", output, extra=ON_STDOUT)
        save_model(
            proto,
            output,
            external_data_path=save_as.external_data,
            size_threshold=save_as.size_threshold,
            all_tensors_to_one_file=save_as.one_file,
        )
        _tell_model("New Model", proto)
    for sentence in changes:
        log.debug("%s", sentence)
    return SurgeonResult(
        path=None if output is None else str(output),
        nodes_before=before,
        nodes=count_nodes(proto),
        changes=tuple(changes),
        _proto=proto,
    )


def _tell_model(title: str, proto: onnx.ModelProto) -> None:
    """Log what a model consists of, in the lines that Polygraphy has for it."""
    if log.isEnabledFor(logging.INFO):
        _, *lines = summary(proto).rstrip().splitlines()
        log.info("%s:\n%s\n", title, textwrap.dedent("\n".join(lines)), extra=ON_STDOUT)


def load_with_weights(model: Source) -> tuple[onnx.ModelProto, set[Path]]:
    """A copy of a model with its weights inside, and the files that must stay as they are.

    Raises:
        ModelError: If it cannot be read, or its external data is missing.
    """
    if isinstance(model, Model):
        return model.proto(), {path.resolve() for path in model.files()}
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy, set()
    path = Path(model)
    proto = read_proto(path)
    files = {path.resolve()}
    folder = path.absolute().parent
    files |= {external.locate(t, folder).path for t in walk.tensors(proto) if external.is_external(t)}
    external.load_external_data(proto, folder)
    return proto, files


def _check_output(path: Path, files: set[Path], save_as: SaveConfig) -> None:
    data = path.parent / (save_as.external_data or f"{path.name}.data")
    if path.resolve() in files or data.resolve() in files:
        raise errors.ConfigError(f"Writing {str(path)!r} would replace a file of the model itself. Give another path.")


def count_nodes(proto: onnx.ModelProto) -> int:
    """Nodes, those of sub-graphs and functions included."""
    return sum(1 for _ in walk.nodes(proto))


def first_names(names: Iterable[str], most: int = 10) -> str:
    """Names in a sentence, and how many there are beside the first."""
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
