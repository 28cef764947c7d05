"""Features of builds, and the groups of them that no verdict can tell apart.

A *feature* is "this layer got this tactic" or "this setting had this value", true or false for each build. Features that are
true of the same builds cannot be told apart by verdicts on these: they form one *group*.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from trtops.tactics.several import Bools

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Features:
    """Choices that differ between builds.

    Attributes:
        present: Of shape ``(builds, features)``.
        column: The layer's (or setting's) position, of shape ``(features,)``.
        code: What it got; -1 for features that say "the build has no such layer".
        birth: The build (from 0) with which the column began to vary or the code was first seen, whichever is later. It
            has a meaning only if builds are in their order of arrival.
    """

    present: Bools
    column: Ints
    code: Ints
    birth: Ints


def features_of(codes: npt.NDArray[np.integer]) -> Features:
    """The features of a matrix of codes.

    Args:
        codes: Of shape ``(builds, columns)``, -1 for absent.
    """
    # No loop over columns: a campaign has thousands. A feature's key is its column times the number of codes, plus its code,
    # moved up by one so that absent (-1) becomes 0; of all possible keys those that occur become features.
    differs = codes != codes[:1]
    columns = np.flatnonzero(differs.any(axis=0))
    varying = np.asarray(codes[:, columns], np.int64) + 1
    limit = int(varying.max(initial=0)) + 1
    keys = varying + np.arange(len(columns)) * limit
    seen = np.zeros(len(columns) * limit, np.bool_)
    seen[keys] = True
    used = np.flatnonzero(seen)
    position = np.cumsum(seen) - 1
    present = np.zeros((len(codes), len(used)), np.bool_)
    present[np.arange(len(codes))[:, None], position[keys]] = True
    owner = used // limit
    # A column can vary from the second build on, so no birth is 0.
    first_change = differs[:, columns].argmax(axis=0) if len(columns) else np.empty(0, np.int64)
    birth = np.maximum(first_change[owner], present.argmax(axis=0) if len(used) else 0)
    return Features(present=present, column=columns[owner], code=used % limit - 1, birth=birth)


@dataclass(frozen=True)
class Groups:
    """Features, those that no verdict can tell apart taken as one.

    Attributes:
        present: Of shape ``(builds, groups)``.
        members: Positions of each group's features.
        log_share: Logarithm of each group's share of the evidence's prior, of shape ``(groups,)``.
    """

    present: Bools
    members: tuple[tuple[int, ...], ...]
    log_share: Floats

    @property
    def log_weight(self) -> float:
        """Logarithm of the share that every group has of the prior of probabilities."""
        return -math.log(len(self.members))


def groups_of(features: Features, *, ordered: bool = True) -> Groups:
    """Group the features that are true of the same builds, and divide the prior of the evidence among the groups.

    Args:
        features: The features.
        ordered: Whether builds are in their order of arrival. If not, every group has the same share.
    """
    packed = np.ascontiguousarray(np.packbits(features.present, axis=0).T)
    found: dict[bytes, list[int]] = {}
    for feature, row in enumerate(packed):
        found.setdefault(row.tobytes(), []).append(feature)
    members = tuple(map(tuple, found.values()))
    shares = _shares_by_birth(features, members) if ordered else np.ones(len(members)) / len(members)
    return Groups(
        present=features.present[:, [group[0] for group in members]],
        members=members,
        log_share=np.log(shares),
    )


def _shares_by_birth(features: Features, members: tuple[tuple[int, ...], ...]) -> Floats:
    """Each group's share of the prior, where builds are in their order of arrival.

    The evidence is valid at any time only if hypotheses keep their prior as builds come, so a feature's share must not depend
    on later ones. The features born with build ``i`` divide ``1 / (i (i + 1))``, which over all ``i`` sums to one. A group's
    share is the sum of its features', so that nothing changes when later builds split the group.
    """
    births, counts = np.unique(features.birth, return_counts=True)
    share = dict(zip(births.tolist(), (1.0 / (births * (births + 1.0) * counts)).tolist()))
    return np.array([math.fsum(share[int(features.birth[f])] for f in group) for group in members], np.float64)
