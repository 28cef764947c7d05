"""Plugins: find what a TensorRT plugin could do in a model, and put its node there.

A plugin is a folder with a ``pattern.py``, as Polygraphy has them: ``get_plugin_metadata()`` gives its ``name`` and
``op``, ``get_matching_subgraphs(graph)`` takes an ONNX-GraphSurgeon graph and gives ``inputs``, ``outputs`` and
``attributes`` of each place, and ``replace_with_plugin(graph, input_tensors, output_tensors, attrs, op)``, where there is
one, puts the node in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_graphsurgeon as gs
import yaml  # type: ignore[import-untyped, unused-ignore]

from trtops import errors
from trtops.backend.common import import_from_script, invoke_from_script, save_bytes
from trtops.backend.onnx.loader import gs_from_onnx
from trtops.backend.onnx.model import Model, check_structure
from trtops.ops.model.opening import Source, open_model
from trtops.ops.model.saving import SaveConfig
from trtops.ops.model.surgeon.operation import SurgeonResult, operate
from trtops.record import Record

PATTERN = "pattern.py"


@dataclass(frozen=True, kw_only=True)
class Place(Record):
    """Where a plugin fits.

    Attributes:
        inputs: Names of the tensors that go into it.
        outputs: Names of the tensors that come out of it.
        attributes: Attributes of the plugin's node: numbers, text, or lists of these.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Match(Record):
    """A plugin, and where it fits.

    Attributes:
        name: The plugin's name, which is its folder's.
        op: The type of its node.
        places: Where it fits.
    """

    name: str
    op: str
    places: tuple[Place, ...]


def match_plugins(
    model: str | Path | onnx.ModelProto,
    folder: str | Path,
    *,
    include: Collection[str] = (),
    exclude: Collection[str] = (),
) -> tuple[Match, ...]:
    """Find the places in a model where plugins fit.

    Args:
        model: The model, or its path; not changed.
        folder: The folder that has the plugins' folders. Their scripts are run: whoever names the folder trusts it.
        include: Names of the plugins to look for; all unless given.
        exclude: Names of plugins to leave out.

    Returns:
        Each plugin that was looked for, those without a place as well, by name.

    Raises:
        ConfigError: If there is no plugin in the folder, none of a name, or its script does not say what it should.
        ModelError: If the model cannot be used.
    """
    known = sorted(path.parent.name for path in Path(folder).glob(f"*/{PATTERN}"))
    if not known:
        raise errors.ConfigError(f"{folder} has no plugins; expected folders with a {PATTERN} in each.")
    for name in (*include, *exclude):
        if name not in known:
            raise errors.ConfigError(f"{folder} has no plugin {name!r}. {errors.near(name, known)}")
    wanted = [name for name in known if (not include or name in include) and name not in exclude]
    opened = open_model(model)
    return tuple(_match_plugin(opened, Path(folder, name, PATTERN)) for name in wanted)


def _match_plugin(model: Model, script: Path) -> Match:
    graph = gs_from_onnx(model.proto())  # anew for each, since a pattern may change it
    described = invoke_from_script(script, "get_plugin_metadata")
    if not isinstance(described, Mapping) or not {"name", "op"} <= set(described):
        raise errors.ConfigError(f"{script}: get_plugin_metadata gave {described!r}; expected a dict with name and op.")
    found = invoke_from_script(script, "get_matching_subgraphs", graph)
    return Match(name=str(described["name"]), op=str(described["op"]), places=tuple(_parse_places(found, str(script))))


def _parse_places(found: Any, where: str) -> Iterable[Place]:
    for place in found or ():
        if not isinstance(place, Mapping) or not {"inputs", "outputs"} <= set(place):
            raise errors.ConfigError(
                f"{where}: {place!r} is no place of a plugin; expected a dict with inputs, outputs and attributes."
            )
        yield Place(
            inputs=tuple(map(str, place["inputs"])),
            outputs=tuple(map(str, place["outputs"])),
            attributes=dict(place.get("attributes") or {}),
        )


def write_matches(matches: Iterable[Match], path: str | Path) -> None:
    """Write the plugins that have places, as Polygraphy does: a YAML document for each, to be edited by hand."""
    documents = [
        {
            "name": match.name,
            "op": match.op,
            "instances": [
                {
                    "inputs": list(place.inputs),
                    "outputs": list(place.outputs),
                    "attributes": {name: _yaml_value(value) for name, value in place.attributes.items()},
                }
                for place in match.places
            ],
        }
        for match in matches
        if match.places
    ]
    save_bytes(yaml.safe_dump_all(documents, default_flow_style=False, sort_keys=False).encode(), str(path))


def _yaml_value(value: Any) -> Any:
    """A value as YAML has it: patterns give numpy numbers and arrays as well."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_yaml_value(item) for item in value] if isinstance(value, (list, tuple)) else value


def read_matches(path: str | Path) -> tuple[Match, ...]:
    """Read what :func:`write_matches`, or Polygraphy, wrote.

    Raises:
        ConfigError: If there is no such file.
        FormatError: If it is something else.
    """
    try:
        documents = [d for d in yaml.safe_load_all(Path(path).read_text(encoding="utf-8")) if d is not None]
    except FileNotFoundError:
        raise errors.ConfigError(f"{str(path)!r} does not exist; `trtops plugin match` writes it.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as exc:
        raise errors.FormatError(f"{path} is no YAML: {exc}.") from None
    if not all(isinstance(d, Mapping) and {"name", "op", "instances"} <= set(d) for d in documents):
        raise errors.FormatError(f"{path} holds no matches; expected documents with name, op and instances.")
    return tuple(
        Match(name=str(d["name"]), op=str(d["op"]), places=tuple(_parse_places(d["instances"], str(path))))
        for d in documents
    )


def replace_plugins(
    model: Source,
    output: str | Path | None,
    matches: Iterable[Match],
    folder: str | Path,
    *,
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Put plugins' nodes in their places.

    Args:
        model: The model; not changed.
        output: Where to write the new one; None does not.
        matches: The plugins and their places.
        folder: The folder that has the plugins' folders, whose scripts may put their nodes in themselves.
        save_as: Where weights go.

    Raises:
        ConfigError: If a tensor is not in the model, two places share what they make, or ``output`` is a file of the
            model itself.
        ModelError: If the model cannot be used.
    """

    def put_in(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
        check_structure(proto)
        graph = gs_from_onnx(proto)
        changes = [_put_nodes_in(graph, match, Path(folder, match.name, PATTERN)) for match in matches]
        graph.cleanup().toposort()
        return gs.export_onnx(graph), changes

    return operate(model, output, save_as, put_in)


def _put_nodes_in(graph: Any, match: Match, script: Path) -> str:
    put = _own_replacement(script) or _put_node_in
    tensors = graph.tensors()
    count = 0
    for place in match.places:
        for name in (*place.inputs, *place.outputs):
            if name not in tensors:
                raise errors.ConfigError(f"The model has no tensor {name!r}. {errors.near(name, tensors)}")
        count += bool(
            put(
                graph=graph,
                input_tensors=[tensors[name] for name in place.inputs],
                output_tensors=[tensors[name] for name in place.outputs],
                attrs=dict(place.attributes),
                op=match.op,
            )
        )
    left = f", {len(match.places) - count} left as they were" if count < len(match.places) else ""
    return f"Put {match.name} in at {count} places{left}."


def _own_replacement(script: Path) -> Callable[..., Any] | None:
    """The plugin's own way to put its node in."""
    if not script.is_file() or "def replace_with_plugin" not in script.read_text(encoding="utf-8"):
        return None
    found: Callable[..., Any] = import_from_script(script, "replace_with_plugin")
    return found


def _put_node_in(
    graph: Any, input_tensors: list[Any], output_tensors: list[Any], attrs: Mapping[str, Any], op: str
) -> bool:
    """A node between tensors; what made them before is removed with the rest that nothing needs any more."""
    if any(made.op == op for tensor in output_tensors for made in tensor.inputs):
        raise errors.ConfigError(
            f"{', '.join(t.name for t in output_tensors)}: a {op} makes that already; two places of a plugin share it. "
            "Leave one of them out of the file."
        )
    for tensor in output_tensors:
        tensor.inputs.clear()
    graph.nodes.append(
        gs.Node(op=op, name=f"{op}_{len(graph.nodes)}", attrs=dict(attrs), inputs=input_tensors, outputs=output_tensors)
    )
    return True
