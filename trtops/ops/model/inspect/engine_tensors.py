"""What an engine's tensors held, from a run that saved them, beside what the engine says of its layers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtops import errors
from trtops.comparator.results import RunResults
from trtops.ops.model.inspect.data import ArraySummary, summarize

if TYPE_CHECKING:
    from trtops.backend.trt.describe.inspector import EngineDescription


def read_tensors(path: str | Path) -> dict[str, ArraySummary]:
    """Statistics of saved outputs by tensor, of each runner's first iteration; of several runners the last counts.

    Args:
        path: Outputs that ``trtops run --save-outputs`` saved, with ``--mark-unfused-tensors-as-debug-tensors`` those of
            all tensors that survived fusion.

    Raises:
        ConfigError: If there is no such file.
        FormatError: If it is something else, or empty.
    """
    if not Path(path).exists():
        raise errors.ConfigError(f"{str(path)!r} does not exist; expected saved outputs (trtops run --save-outputs).")
    found = {
        name: summarize(runner, name, array)
        for runner, iterations in RunResults.load(str(path)).items()
        for name, array in (iterations[0].items() if iterations else ())
    }
    if not found:
        raise errors.FormatError(f"{path} holds no outputs; expected those of one iteration at least.")
    return found


def tensors_text(engine: EngineDescription, tensors: dict[str, ArraySummary]) -> str:
    """The engine's layers with what their tensors held.

    Args:
        engine: The engine.
        tensors: Statistics by tensor.
    """
    seen: set[str] = set()
    lines = [f"---- Tensors of {len(engine.layers)} Layers ----"]
    for layer in engine.layers:
        lines.append(f"{layer.name} [Op: {layer.op}]")
        for arrow, each in (("   ", layer.inputs), (" ->", layer.outputs)):
            for tensor in each:
                seen.add(tensor.name)
                lines.append(f"  {arrow} {tensor.name} [{_array_text(tensors.get(tensor.name))}]")
    others = [name for name in tensors if name not in seen]
    if others:
        lines += ["", f"Not of any layer: {', '.join(others)}"]
    return "\n".join(lines) + "\n"


def _array_text(found: ArraySummary | None) -> str:
    if found is None:
        return "not saved"
    if found.mean is None:
        return f"dtype={found.dtype}, shape={found.shape}"
    return (
        f"dtype={found.dtype}, shape={found.shape}, mean={found.mean:.5g}, std={found.std:.5g}, min={found.minimum:.5g}, "
        f"max={found.maximum:.5g}, NaN={found.nan}, inf={found.inf}"
    )
