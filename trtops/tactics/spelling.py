"""Choices as texts, which are equal where choices count as equal: by tactic, format, precision, or tactic and format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from trtops.tactics.findings import By
from trtops.tactics.record import TacticChoice, TensorFormat
from trtops.tactics.table import ABSENT, Choice


def spell(choices: Sequence[Choice], by: By) -> tuple[tuple[str, ...], npt.NDArray[np.int32]]:
    """Texts of what is compared, and the translation of a table's codes into them.

    Returns:
        The texts, all different; and for each choice the position of its text, of shape ``(choices + 1,)``. Indexed with
        the code -1 of an absent layer, it gives its last entry, which is -1 again.
    """
    same_words = Counter(tactic for tactic, _, _ in {(c.tactic, c.implementation, c.tactic_id) for c in choices})
    texts: dict[str, int] = {}
    codes = []
    for choice in choices:
        text = SPELLINGS[by](choice)
        if by in ("tactic", "algorithm") and same_words[choice.tactic] > 1:
            text += f" (implementation {choice.implementation}, tactic {choice.tactic_id})"
        codes.append(texts.setdefault(text, len(texts)))
    return tuple(texts), np.array([*codes, ABSENT], np.int32)


def algorithm_text(choice: Choice | TacticChoice) -> str:
    """A choice as Polygraphy prints algorithms, where TensorRT has numbers for it; in words elsewhere."""
    if choice.implementation is None or choice.tactic_id is None:
        return choice.tactic
    numbers = f"(Implementation: {choice.implementation}, Tactic: {choice.tactic_id})"
    return f"{numbers} | Inputs: {_tensor_infos(choice.inputs)} | Outputs: {_tensor_infos(choice.outputs)}"


def _tensor_infos(formats: Sequence[TensorFormat]) -> str:
    texts = [f"TensorInfo({f.dtype}, {f.strides}, {f.vectorized_dim}, {f.components_per_element})" for f in formats]
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _formats_text(choice: Choice) -> str:
    return f"{', '.join(map(_format_text, choice.inputs))} -> {', '.join(map(_format_text, choice.outputs))}"


def _format_text(tensor: TensorFormat) -> str:
    vector = "" if tensor.vectorized_dim is None else f" by {tensor.components_per_element} in {tensor.vectorized_dim}"
    return f"{tensor.dtype}{list(tensor.strides) if tensor.strides else ''}{vector}"


def _precisions_text(choice: Choice) -> str:
    return f"{', '.join(t.dtype for t in choice.inputs)} -> {', '.join(t.dtype for t in choice.outputs)}"


SPELLINGS: dict[By, Callable[[Choice], str]] = {
    "tactic": lambda choice: choice.tactic,
    "format": _formats_text,
    "precision": _precisions_text,
    "algorithm": lambda choice: f"{choice.tactic}: {_formats_text(choice)}",
}
