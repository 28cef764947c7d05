"""Nodes of a model that have something in common: their type, their scope, or both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trtops.ops.search.precision.candidates import Names, literal_pattern

_MOST_GROUPS = 48  # the largest are tried, since a search asks about each


def node_groups(ops: Mapping[str, str]) -> dict[str, Names]:
    """Groups of nodes by what they have in common, smallest first; none is all of them.

    Args:
        ops: The nodes' types by their names.
    """
    groups: dict[str, set[str]] = {}
    for name, op in ops.items():
        scopes = list(_scopes_around(name))
        for label in (op, *(f"{scope}/*" for scope in scopes), *(f"{scope}/* {op}" for scope in scopes)):
            groups.setdefault(label, set()).add(name)
    different: dict[Names, str] = {}
    for label, names in groups.items():
        if len(names) < len(ops) and (len(names) > 1 or "/*" not in label):
            different.setdefault(frozenset(names), label)
    largest = sorted(different, key=len, reverse=True)[:_MOST_GROUPS]
    return {different[names]: names for names in reversed(largest)}


def shortest_patterns(keep: Names, ops: Mapping[str, str]) -> tuple[str, ...]:
    """The types or the scope that stand for just these nodes, or else their names, as patterns.

    Args:
        keep: The nodes.
        ops: The types of all nodes by their names.
    """
    types = {ops[name] for name in keep}
    if len(keep) > 1 and keep == {name for name in ops if ops[name] in types}:
        return tuple(sorted(types))
    for label, names in node_groups(ops).items():
        if len(keep) > 1 and names == keep and label.endswith("/*"):
            return (label,)
    return tuple(literal_pattern(name) for name in ops if name in keep)


def _scopes_around(name: str) -> Iterator[str]:
    """The scopes around a node, as ``a`` and ``a/b`` for ``a/b/c``."""
    parts = name.strip("/").split("/")
    lead = "/" if name.startswith("/") else ""
    for depth in range(1, len(parts)):
        yield lead + "/".join(parts[:depth])
