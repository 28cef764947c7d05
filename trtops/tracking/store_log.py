"""Entries of a store's log, an append-only list of events to detect removed, moved and changed runs.

The end of a run, a version before and after an alias points to it, and the deletion of an artifact each add an entry,
which contains the hashes of all entries before it: the roots of a Merkle tree (RFC 6962, section 2.1). A head is the
number of entries and the tree's hash, such as ``57:3fa9...``: an old one must be the head of today's first entries. A
manifest, and so its signature, contains the head at the end of its run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from trtops import errors
from trtops.record import Record, sha256
from trtops.tracking.records import RunInfo
from trtops.tracking.schema import Tag

# The end of a run, by its process or by another since it was killed; a version of a model; the deletion of an artifact.
Event: TypeAlias = Literal["ended", "closed", "registering", "registered", "deleted"]
Facts: TypeAlias = Mapping[str, "str | float | None"]

HEAD = re.compile(r"\b(\d+):([0-9a-f]{64})\b")


@dataclass(frozen=True, kw_only=True)
class Entry(Record):
    """An entry. ``tree`` are the roots of the perfect subtrees over all earlier entries, the largest first."""

    tree: tuple[str, ...]
    event: Event
    time: float  # seconds since the epoch
    run: str
    facts: Facts

    @classmethod
    def read(cls, number: int, text: str) -> Entry:
        """Read the entry with this number; FormatError if it is damaged, or another one."""
        # Not by from_json: a log has thousands of entries, and their hashes protect them.
        try:
            values = json.loads(text)
            tree, run, facts = tuple(map(str, values["tree"])), str(values["run"]), dict(values["facts"])
            entry = cls(**{**values, "tree": tree, "run": run, "facts": facts, "time": float(values["time"])})
            if [len(bytes.fromhex(tree_hash)) for tree_hash in tree] != [32] * number.bit_count():
                raise ValueError(f"its hashes are not those of {number} entries before it")
        except (ValueError, TypeError, LookupError, RecursionError) as exc:
            raise errors.FormatError(f"{type(exc).__name__}: {exc}") from None
        return entry


def leaf_hash(text: str) -> str:
    """The hash of an entry."""
    return sha256(b"\0" + text.encode("utf-8", "surrogatepass"))


def _node_hash(left: str, right: str) -> str:
    return hashlib.sha256(b"\1" + bytes.fromhex(left) + bytes.fromhex(right)).hexdigest()


def grown(tree: tuple[str, ...], size: int, text: str) -> tuple[str, ...]:
    """The roots of the perfect subtrees over ``size`` entries and one more."""
    roots = [*tree, leaf_hash(text)]
    while size & 1:  # the last two subtrees have the same size
        roots[-2:] = [_node_hash(*roots[-2:])]
        size >>= 1
    return tuple(roots)


def head_of(tree: tuple[str, ...], size: int) -> str:
    """The head of a log from the roots of its perfect subtrees; empty without entries."""
    *rest, root = tree or ("",)
    for left in reversed(rest):
        root = _node_hash(left, root)
    return f"{size}:{root}" if size else ""


def run_facts(info: RunInfo, signature: bytes | None) -> dict[str, str | float | None]:
    """What the log states about a run with this signature; its manifest states the rest."""
    return {
        "experiment": info.experiment, "name": info.name, "parent": info.parent, "kind": info.kind,
        "verdict": info.verdict, "status": "deleted in MLflow" if info.deleted else info.status,
        "started": info.start_time, "ended": info.end_time, "user": info.tags.get(Tag.USER),
        "manifest": info.tags.get(Tag.MANIFEST_SHA256) or None,
        "signature": None if signature is None else sha256(signature),
    }  # fmt: skip
