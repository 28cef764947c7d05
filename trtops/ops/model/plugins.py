"""Plugins: find the matches of TensorRT plugins in a model, and insert their nodes there.

A plugin is a folder with a ``pattern.py``, as in Polygraphy: ``get_plugin_metadata()`` returns its ``name`` and ``op``,
``get_matching_subgraphs(graph)`` takes an ONNX-GraphSurgeon graph and returns ``inputs``, ``outputs`` and
``attributes`` of each place, and the optional ``replace_with_plugin(graph, input_tensors, output_tensors, attrs, op)``
inserts the node.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import onnx
import onnx_graphsurgeon as gs
import yaml  # type: ignore[import-untyped, unused-ignore]

from trtops import errors
from trtops.backend.common import import_from_script, invoke_from_script, save_bytes
from trtops.backend.onnx.loader import gs_from_onnx
from trtops.ops.arguments import checked_arguments
from trtops.ops.model.model_files import SaveConfig, Source, open_model
from trtops.ops.model.surgeon import SurgeonResult, operate

PATTERN = "pattern.py"


@dataclass(frozen=True)
class Match:
    """A plugin's name (its folder's), the type of its node, and its places in the model.

    A place has ``inputs`` and ``outputs``, names of tensors, and ``attributes`` of the plugin's node.
    """

    name: str
    op: str
    places: tuple[dict[str, Any], ...]


@checked_arguments
def match_plugins(
    model: str | Path | onnx.ModelProto,
    folder: str | Path,
    *,
    include: Collection[str] = (),
    exclude: Collection[str] = (),
) -> tuple[Match, ...]:
    """Find the places for plugins in a model; the result includes plugins without a place.

    ``folder`` has a folder for each plugin. Their scripts are executed, so it must be trusted. ``include`` names the
    plugins to search for, all if it is empty. ConfigError if the folder has no plugins, or lacks a named one, or a
    script returns something else.
    """
    plugin_names = sorted(path.parent.name for path in Path(folder).glob(f"*/{PATTERN}"))
    if not plugin_names:
        raise errors.ConfigError(f"{folder} has no plugins; expected folders with a {PATTERN} in each.")
    for name in (*include, *exclude):
        errors.check_known(name, plugin_names, f"{folder} has no plugin")
    opened = open_model(model)
    matches = []
    for name in plugin_names:
        if name in exclude or (include and name not in include):
            continue
        script = Path(folder, name, PATTERN)
        described = invoke_from_script(script, "get_plugin_metadata")
        if not isinstance(described, Mapping) or not {"name", "op"} <= set(described):
            raise errors.ConfigError(
                f"{script}: get_plugin_metadata returned {described!r}; expected a dict with name and op."
            )
        # Each pattern gets a new graph, since it may change it.
        instances = invoke_from_script(script, "get_matching_subgraphs", gs_from_onnx(opened.proto()))
        matches.append(_parse_match({**described, "instances": instances}, str(script)))
    return tuple(matches)


def _parse_match(description: Mapping[str, Any], where: str) -> Match:
    # From a script or from a file that users edit: either may have anything in it.
    instances = description["instances"] or ()
    places = []
    for instance in instances:
        if not isinstance(instance, Mapping) or not {"inputs", "outputs"} <= set(instance):
            raise errors.ConfigError(
                f"{where}: {instance!r} is not a place of a plugin; expected a dict with inputs, outputs and "
                "attributes."
            )
        attributes = {name: _plain(value) for name, value in (instance.get("attributes") or {}).items()}
        inputs, outputs = list(map(str, instance["inputs"])), list(map(str, instance["outputs"]))
        places.append({"inputs": inputs, "outputs": outputs, "attributes": attributes})
    return Match(str(description["name"]), str(description["op"]), tuple(places))


def _plain(value: Any) -> Any:
    """A value in YAML's types: patterns return numpy numbers and arrays as well."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def write_matches(matches: Iterable[Match], path: str | Path) -> None:
    """Write plugins with places in Polygraphy's format: a YAML document for each, editable by users."""
    entries = [{"name": m.name, "op": m.op, "instances": list(m.places)} for m in matches if m.places]
    save_bytes(yaml.safe_dump_all(entries, default_flow_style=False, sort_keys=False).encode(), str(path))


def read_matches(path: str | Path) -> tuple[Match, ...]:
    """Read a file of :func:`write_matches` or Polygraphy; anything else raises FormatError."""
    try:
        documents = [d for d in yaml.safe_load_all(Path(path).read_text(encoding="utf-8")) if d is not None]
    except FileNotFoundError:
        raise errors.ConfigError(f"{str(path)!r} does not exist; `trtops plugin match` writes it.") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as exc:
        raise errors.FormatError(f"{path} is not YAML: {exc}.") from None
    if not all(isinstance(d, Mapping) and {"name", "op", "instances"} <= set(d) for d in documents):
        raise errors.FormatError(f"{path} has no matches; expected documents with name, op and instances.")
    return tuple(_parse_match(document, str(path)) for document in documents)


@checked_arguments
def replace_plugins(
    model: Source,
    output: str | Path | None,
    matches: Iterable[Match],
    folder: str | Path,
    *,
    save_as: SaveConfig | None = None,
) -> SurgeonResult:
    """Insert plugins' nodes in their places. Scripts in the plugins' folders may do this themselves.

    ConfigError if a tensor is not in the model, two places share an output, or ``output`` is a file of the model.
    """

    # ONNX-GraphSurgeon makes a model of its own, so the changed one is returned.
    def put_in(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
        graph = gs_from_onnx(proto)
        changes = []
        for match in matches:
            script = Path(folder, match.name, PATTERN)
            put: Callable[..., Any] = _insert_node
            # Most plugins have no function of their own, and the folder is not needed for them.
            if script.is_file() and "def replace_with_plugin" in script.read_text(encoding="utf-8"):
                put = import_from_script(script, "replace_with_plugin")
            tensors = graph.tensors()
            count = 0
            for instance in match.places:
                for name in (*instance["inputs"], *instance["outputs"]):
                    errors.check_known(name, tensors, "The model has no tensor")
                is_put = put(
                    graph=graph,
                    input_tensors=list(map(tensors.__getitem__, instance["inputs"])),
                    output_tensors=list(map(tensors.__getitem__, instance["outputs"])),
                    attrs=dict(instance["attributes"]),
                    op=match.op,
                )
                count += bool(is_put)
            left = f", {len(match.places) - count} not changed" if count < len(match.places) else ""
            changes.append(f"Inserted {match.name} in {count} places{left}.")
        graph.cleanup().toposort()
        return gs.export_onnx(graph), changes

    return operate(model, output, save_as, put_in)


def _insert_node(
    graph: Any, input_tensors: list[Any], output_tensors: list[Any], attrs: Mapping[str, Any], op: str
) -> bool:
    """Insert a node between tensors, replacing the producers of the outputs."""
    if any(producer.op == op for producer in chain.from_iterable(tensor.inputs for tensor in output_tensors)):
        raise errors.ConfigError(
            f"{', '.join(t.name for t in output_tensors)}: a {op} node already produces this; two places of a plugin "
            "share it. Remove one of them from the file."
        )
    # The nodes that made these tensors lose their readers; the clean-up at the end removes them.
    for tensor in output_tensors:
        tensor.inputs.clear()
    name = f"{op}_{len(graph.nodes)}"
    graph.nodes.append(gs.Node(op=op, name=name, attrs=dict(attrs), inputs=input_tensors, outputs=output_tensors))
    return True
