"""Campaigns of :mod:`tests.tactics.cells` without mixtures: a diff after every build, with its figures.

Run as a script for the figures of cells: ``python -m tests.tactics.alone 100 60 20,one,0 100,either,0.05``, seeds and
builds first.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.tactics.cells import Cell, Clause, World, cell_of, table_of, truth
from trtops.tactics.diff import diff
from trtops.tactics.findings import Suspect, TacticDiff

SURE = 0.9  # a probability from which on a statement is checked
FEWEST = 4  # builds


@dataclass
class Watched:
    """The diffs of a campaign.

    Attributes:
        when: After how many builds a culprit was confirmed; 0 if none was.
        named_wrongly: Whether another choice was, at any time.
        suspects: For suspects with a probability of :data:`SURE`, once something was confirmed: whether they are
            culprits.
        explanations: For explanations complete with that probability: whether they are.
        complete: Whether the last diff's explanation is the whole truth.
    """

    when: int = 0
    named_wrongly: bool = False
    suspects: list[bool] = field(default_factory=list)
    explanations: list[bool] = field(default_factory=list)
    complete: bool = False


def watch(world: World, builds: int) -> Watched:
    """Diff after every build."""
    world.built, watched = 0, Watched()
    culprits = {key for clause in world.culprits for key in clause}
    rows: list[np.ndarray] = []
    bad: list[bool] = []
    for count in range(1, builds + 1):
        rows.append(world.draw())
        bad.append(world.is_bad(rows[-1]))
        if count < FEWEST or len(set(bad)) < 2:
            continue
        found = diff(table_of(rows, bad))
        if found.conclusion == "confirmed":
            is_right = [bool(keys_of(suspect) & culprits) for suspect in found.confirmed]
            watched.named_wrongly |= not all(is_right)
            watched.when = watched.when or count * is_right[0]
            watched.suspects += [bool(keys_of(s) & culprits) for s in found.suspects if s.probability >= SURE]
            if found.explanation is not None and found.explanation.probability >= SURE:
                watched.explanations.append(is_whole(found, truth(world)))
        watched.named_wrongly |= not culprits and found.conclusion == "narrowed down"
        watched.complete = is_whole(found, truth(world))
    return watched


def keys_of(suspect: Suspect) -> set[tuple[int, int]]:
    """Layers and what they got; -1 where they are absent."""
    texts = ((choice.layer, choice.choice or "-1") for choice in suspect.choices)
    return {(int(layer.removeprefix("layer-")), int(text.removeprefix("tactic-"))) for layer, text in texts}


def is_whole(found: TacticDiff, true: frozenset[Clause]) -> bool:
    """Whether a diff explains what is true, and nothing else; choices that no verdict separates stand for one
    another."""
    if found.explanation is None:
        return False
    clauses = [[keys_of(found.suspects[place]) for place in clause] for clause in found.explanation.clauses]

    def is_same(named: Sequence[set[tuple[int, int]]], clause: Clause) -> bool:
        return len(named) == len(clause) and all(keys & set(clause) for keys in named)

    return len(clauses) == len(true) and all(any(is_same(named, clause) for clause in true) for named in clauses)


def played(cell: Cell, seeds: range, builds: int) -> Iterator[Watched]:
    """Campaigns of a cell."""
    return (watch(World(seed, cell.layers, cell.kind, cell.noise), builds) for seed in seeds)


def figures(cell: Cell, seeds: range, builds: int) -> str:
    """One line."""
    all_of = list(played(cell, seeds, builds))
    suspects = [said for w in all_of for said in w.suspects]
    explanations = [said for w in all_of for said in w.explanations]
    return (
        f"{cell.layers:4} layers  {cell.kind:11}  {cell.noise:4.0%} wrong: confirmed after a median of "
        f"{np.median([w.when or builds + 1 for w in all_of]):g}, complete {sum(w.complete for w in all_of)} of "
        f"{len(all_of)}, wrongly named {sum(w.named_wrongly for w in all_of)}; at {SURE:.0%} and more: suspects "
        f"{sum(suspects)} of {len(suspects)} right, explanations {sum(explanations)} of {len(explanations)}; "
        "wrong ones in "
        f"{sum(not all(w.explanations) for w in all_of)} campaigns"
    )


def main(arguments: Sequence[str]) -> None:
    seeds, builds = range(int(arguments[0])), int(arguments[1])
    for cell in map(cell_of, arguments[2:]):
        print(figures(cell, seeds, builds), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
