"""Searches for the smallest thing that still fails, whatever the thing is.

A search asks about candidates: ``ask`` takes them in order of preference and returns, in the same order, whether each
fails. It may answer lazily (then nothing is asked that the search does not need) or all at once (then
``width`` candidates are worth asking about together). Searches repeat questions, and nothing here
remembers answers: an ``ask`` whose answers are expensive should.

A failure is *monotone* if whatever contains something that fails fails as well. What the docstrings of searches
say holds for any failure, unless they say that it takes a monotone one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Ask: TypeAlias = "Callable[[Sequence[T]], Iterable[bool]]"
"""Whether each candidate fails, in order."""

Items: TypeAlias = frozenset[int]
Interval: TypeAlias = tuple[int, int]
"""From a number up to, not including, another."""


def first_failing(ask: Ask[T], candidates: Iterable[T], width: int = 1) -> T | None:
    """The first candidate that fails, or None if none does.

    Args:
        ask: Tells which candidates fail.
        candidates: In order of preference.
        width: How many to ask about at a time.
    """
    remaining = iter(candidates)
    while batch := list(islice(remaining, width)):
        for candidate, fails in zip(batch, ask(batch)):
            if fails:
                return candidate
    return None


def linear(ask: Ask[int], low: int, high: int, width: int = 1) -> int:
    """The smallest number above ``low`` that fails, asking about one after the other.

    Args:
        ask: Tells which numbers fail.
        low: Taken not to fail; not asked about.
        high: Taken to fail; not asked about.
        width: How many to ask about at a time.
    """
    found = first_failing(ask, range(low + 1, high), width)
    return high if found is None else found


def bisect(ask: Ask[int], low: int, high: int, width: int = 1) -> int:
    """A number that fails while the one below it does not, by halving; the smallest, for monotone failures.

    Asks about ``log2(high - low)`` numbers, or with ``width`` of them at a time ``log(width + 1)`` rounds.

    Args:
        ask: Tells which numbers fail.
        low: Taken not to fail; not asked about.
        high: Taken to fail; not asked about.
        width: How many to ask about at a time.
    """
    while high - low > 1:
        points = _points_between(low, high, width)
        for point, fails in zip(points, ask(points)):
            if fails:
                high = point
                break
            low = point
    return high


def _points_between(low: int, high: int, count: int) -> list[int]:
    """At most ``count`` numbers that part the open interval as evenly as they can, ascending."""
    parts = min(count + 1, high - low)
    return [low + (high - low) * i // parts for i in range(1, parts)]


def halve(ask: Ask[Interval], whole: Interval, width: int = 1) -> Interval:
    """An interval that fails while neither of its halves does, or of length one.

    A single failing number is found by ``log2`` of the length questions, and one more. For that, where a first half does
    not fail, the second is taken to fail until the end, and only looked at if nothing is found there.

    Args:
        ask: Tells which intervals fail.
        whole: Taken to fail; not asked about.
        width: How many to ask about at a time.
    """
    path = [whole]  # the first fails, the others are taken to: each is the second half of the one before
    while path[-1][1] - path[-1][0] > 1:
        ahead = list(islice(_second_halves(path[-1]), width))
        firsts = [(low, middle) for (low, _), (middle, _) in zip([path[-1], *ahead], ahead)]
        failing = next((first for first, fails in zip(firsts, ask(firsts)) if fails), None)
        path = [*path, *ahead] if failing is None else [failing]
    if len(path) == 1 or next(iter(ask(path[-1:]))):
        return path[-1]
    # Counted from the end: the last does not fail, the first does.
    last = len(path) - 1
    return path[last - bisect(lambda numbers: ask([path[last - n] for n in numbers]), 0, last, width)]


def _second_halves(interval: Interval) -> Iterator[Interval]:
    """The second half of an interval, the second half of that, and so on down to length one."""
    low, high = interval
    while high - low > 1:
        low = (low + high) // 2
        yield low, high


def quickxplain(ask: Ask[Items], items: Sequence[int]) -> list[int]:
    """For monotone failures a part of ``items`` that fails, and of which nothing can be left out; else just a part.

    This is Junker's QuickXplain ("Preferred explanations and relaxations for over-constrained problems", AAAI 2004): with
    ``k`` of ``n`` items needed it asks about ``2k log2(n / k) + 2k`` sets, far fewer than :func:`ddmin` where the needed
    ones lie far apart.

    Args:
        ask: Tells which sets fail; the empty set is not asked about and taken not to fail.
        items: Taken to fail together.

    Returns:
        The part, in the order of ``items``.
    """

    def needed(base: list[int], changed: bool, among: list[int]) -> list[int]:
        if changed and base and next(iter(ask([frozenset(base)]))):
            return []
        if len(among) == 1:
            return among
        first, second = among[: len(among) // 2], among[len(among) // 2 :]
        of_second = needed(base + first, True, second)
        return needed(base + of_second, bool(of_second), first) + of_second

    return needed([], False, list(items)) if items else []


def smallest(ask: Ask[Items], items: Sequence[int], width: int = 1) -> list[int]:
    """What :func:`ddmin` promises, with fewer questions where the failure is monotone."""
    quick = quickxplain(ask, items)
    if len(quick) < len(items) and first_failing(ask, [frozenset(quick)]) is None:
        quick = list(items)
    return ddmin(ask, quick, width, parts=len(quick) if len(quick) < len(items) else 2)


def ddmin(ask: Ask[Items], items: Sequence[int], width: int = 1, *, parts: int = 2) -> list[int]:
    """A part of ``items`` that fails and of which no single item can be left out: it is *1-minimal*.

    This is Zeller and Hildebrandt's ddmin ("Simplifying and isolating failure-inducing input", IEEE TSE 28(2), 2002):
    try ever smaller chunks, and what is left without one.

    Args:
        ask: Tells which sets fail; the empty set is not asked about and taken not to fail.
        items: Taken to fail together; neighbours are tried together.
        width: How many sets to ask about at a time.
        parts: In how many chunks to begin with; as many as items where little is expected to go.

    Returns:
        The part, in the order of ``items``. Every set of it without one item was asked about and did not fail.
    """
    kept, parts = list(items), max(min(parts, len(items)), 2)
    while len(kept) > 1:
        chunks = _equal_chunks(kept, parts)
        # With two chunks each is what is left without the other.
        without = [] if parts == 2 else [[item for item in kept if item not in chunk] for chunk in map(set, chunks)]
        sets = {frozenset(part): part for part in (*chunks, *without)}
        found = first_failing(ask, list(sets), width)
        if found is not None:
            smaller = sets[found]
            parts = 2 if smaller in chunks else max(parts - 1, 2)
            kept = smaller
        elif parts >= len(kept):
            break
        else:
            parts = min(2 * parts, len(kept))
    return kept


def _equal_chunks(items: list[int], parts: int) -> list[list[int]]:
    """The items in ``parts`` runs of nearly equal length."""
    ends = [len(items) * i // parts for i in range(parts + 1)]
    return [items[start:end] for start, end in pairwise(ends)]


def find_all(ask: Ask[Items], items: Iterable[int], find: Callable[[Items], Items]) -> Iterator[Items]:
    """Every smallest failing set, one after the other, also those that share items with others.

    After each finding, the search goes on without one item of it, for each of its items in turn; this is Reiter's
    hitting-set tree ("A theory of diagnosis from first principles", Artificial Intelligence 32(1), 1987). Complete for
    monotone failures. Independent findings of one item each cost one question each beside what ``find`` asks.

    Args:
        ask: Tells which sets fail.
        items: Taken to fail together.
        find: Finds one smallest failing set within a set that fails.

    Yields:
        The findings, no two equal, as they are found.
    """
    everything = frozenset(items)
    found: list[Items] = []
    passing: list[Items] = []  # left-outs after which nothing fails; leaving out more does not help
    queue: list[Items] = [frozenset()]
    seen = set(queue)
    while queue:
        left_out = queue.pop(0)
        if any(known <= left_out for known in passing):
            continue
        culprit = next((known for known in found if not known & left_out), None)
        if culprit is None:
            rest = everything - left_out
            if left_out and first_failing(ask, [rest] if rest else []) is None:
                passing.append(left_out)
                continue
            culprit = find(rest)
            found.append(culprit)
            yield culprit
        for item in sorted(culprit):
            more = left_out | {item}
            if more not in seen:
                seen.add(more)
                queue.append(more)
