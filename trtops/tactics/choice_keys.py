"""Choices as texts that are equal where choices count as equal, and as features of builds.

A *feature* is "this layer got this choice" or "this setting had this value". Features that are true of the same builds
cannot be distinguished by verdicts: they form one *group*.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from trtops.tactics.model import Bools, Floats, Ints
from trtops.tactics.record import TacticChoice, TensorFormat
from trtops.tactics.table import ABSENT, Choice

By: TypeAlias = Literal["tactic", "format", "precision", "algorithm"]
"""What makes two choices differ: their tactics, tensor formats or precisions; or tactic and formats together, as in
Polygraphy, for a tactic that fails in one format only."""


def choice_texts(choices: Sequence[Choice], by: By) -> tuple[tuple[str, ...], npt.NDArray[np.int32]]:
    """Texts of what is compared, and the translation of a table's codes into positions of texts.

    Returns:
        The texts, all different; and for each choice the position of its text, of shape ``(choices + 1,)``. The code -1
        of an absent layer picks its last entry, which is -1 again.
    """
    same_words = Counter(tactic for tactic, _, _ in {(c.tactic, c.implementation, c.tactic_id) for c in choices})
    texts: dict[str, int] = {}
    codes = []
    for choice in choices:
        text = TEXTS[by](choice)
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


TEXTS: dict[By, Callable[[Choice], str]] = {
    "tactic": lambda choice: choice.tactic,
    "format": _formats_text,
    "precision": lambda c: f"{', '.join(t.dtype for t in c.inputs)} -> {', '.join(t.dtype for t in c.outputs)}",
    "algorithm": lambda choice: f"{choice.tactic}: {_formats_text(choice)}",
}


@dataclass(frozen=True)
class Features:
    """Choices that differ between builds.

    Attributes:
        present: Of shape ``(builds, features)``.
        column: The layer's (or setting's) position, of shape ``(features,)``.
        code: What it got; -1 for features that say "the build has no such layer".
        birth: The build (from 0) with which the column began to vary or the code first occurred, whichever is later.
    """

    present: Bools
    column: Ints
    code: Ints
    birth: Ints


def features_of(codes: npt.NDArray[np.integer]) -> Features:
    """The features of a matrix of codes of shape ``(builds, columns)``, -1 for absent."""
    # No loop over columns, since a campaign has thousands. A feature's key is its column times the number of codes plus
    # its code, moved up by one so that absent (-1) becomes 0. The keys that occur become features.
    differs = codes != codes[:1]
    columns = np.flatnonzero(differs.any(axis=0))
    varying = np.asarray(codes[:, columns], np.int64) + 1
    limit = int(varying.max(initial=0)) + 1
    keys = varying + np.arange(len(columns)) * limit
    occurs = np.zeros(len(columns) * limit, np.bool_)
    occurs[keys] = True
    used = np.flatnonzero(occurs)
    position = np.cumsum(occurs) - 1
    present = np.zeros((len(codes), len(used)), np.bool_)
    present[np.arange(len(codes))[:, None], position[keys]] = True
    owner = used // limit
    # A column can vary from the second build on, so no birth is 0.
    first_change = differs[:, columns].argmax(axis=0) if len(columns) else np.empty(0, np.int64)
    birth = np.maximum(first_change[owner], present.argmax(axis=0) if len(used) else 0)
    return Features(present=present, column=columns[owner], code=used % limit - 1, birth=birth)


@dataclass(frozen=True)
class Groups:
    """Features, grouped where they are true of the same builds.

    Attributes:
        present: Of shape ``(builds, groups)``.
        members: Positions of each group's features.
        log_share: Logarithm of each group's share of the evidence's prior, of shape ``(groups,)``.
    """

    present: Bools
    members: tuple[tuple[int, ...], ...]
    log_share: Floats


def groups_of(features: Features, *, ordered: bool = True) -> Groups:
    """Group features, and divide the prior of the evidence among the groups.

    Evidence is valid at any time only if the prior of a feature does not depend on later builds. The features born with
    build ``i`` divide ``1 / (i (i + 1))``, which sums to one over all ``i``. A group's share is the sum of its
    features', so that nothing changes when later builds split the group. Without an order, every group has the same
    share.
    """
    packed = np.ascontiguousarray(np.packbits(features.present, axis=0).T)
    found: dict[bytes, list[int]] = {}
    for feature, row in enumerate(packed):
        found.setdefault(row.tobytes(), []).append(feature)
    members = tuple(map(tuple, found.values()))
    shares = np.ones(len(members)) / len(members)
    if ordered:
        births, counts = np.unique(features.birth, return_counts=True)
        share = dict(zip(births.tolist(), (1.0 / (births * (births + 1.0) * counts)).tolist()))
        shares = np.array([math.fsum(share[int(features.birth[f])] for f in group) for group in members], np.float64)
    return Groups(
        present=features.present[:, [group[0] for group in members]], members=members, log_share=np.log(shares)
    )
