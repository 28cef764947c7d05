"""Which difference explains why a build did not come out the same: one thing is put back at a time, where that can be done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from trtops.backend.base import Caches
from trtops.backend.worker import IsolatedBackend
from trtops.ops.auditing.config import GRADES, Grade, WayName, reaches
from trtops.ops.auditing.gathering import Gathered
from trtops.ops.auditing.rebuilding import make_again
from trtops.ops.auditing.result import Difference, PutBack, Rebuild
from trtops.spec import BuildConfig, Environment, OnnxRuntimeOptions

_UNSTEADY = ("device sm_clock_mhz", "device memory_clock_mhz", "device other_processes", "device uuid_sha256")
_SAME = ("package onnxruntime", "device_sha256")
"""Differences that come with another one that says the same."""


def best(grades: Iterable[Grade]) -> Grade:
    """The best of some grades."""
    return min(grades, key=GRADES.index)


def explain(
    gathered: Gathered,
    rebuilds: Sequence[Rebuild],
    differences: Sequence[Difference],
    backend: IsolatedBackend,
    repeats: int,
) -> tuple[tuple[PutBack, ...], str]:
    """Put single things back, and say what explains that the build is not the same.

    Returns:
        What was put back, with the grade of each, and the explanation; nothing where there is nothing to explain.
    """
    grades = {each.way: each.grade for each in rebuilds}
    top = best(grades.values())
    if all(reaches(grade, "tactics") for grade in grades.values()):
        return (), ""
    if reaches(top, "tactics"):
        return (), _explain_by_ways(grades, top)
    tried = tuple(_put_back(gathered, differences, backend, repeats))
    helping = [each for each in tried if GRADES.index(each.grade) < GRADES.index(top)]
    if helping:
        winner = min(helping, key=lambda each: GRADES.index(each.grade))
        return tried, f"Explained by {winner.what}: with it as it was, the build is {winner.grade}, and {top} without."
    return tried, _explain_by_rest(differences, tried)


def _explain_by_ways(grades: Mapping[WayName, Grade], top: Grade) -> str:
    """Where one way is as good as asked for and another is not, the builder's own choices made the difference."""
    lesser = [way for way, grade in grades.items() if not reaches(grade, "tactics") and grade != "cannot be rebuilt"]
    if not lesser:
        return ""
    good = [way for way, grade in grades.items() if grade == top]
    return (
        f"Explained by the builder's timings: by {' and by '.join(good)} it is {top}, so nothing else decides; "
        f"left to time tactics anew ({', '.join(lesser)}) it chooses others."
    )


def _explain_by_rest(differences: Sequence[Difference], tried: Sequence[PutBack]) -> str:
    back = {each.what for each in tried}
    steady = [each for each in differences if each.what not in (*_UNSTEADY, *_SAME, *back)]
    if len(steady) == 1:
        return f"The only difference that could not be put back here is {steady[0].text()}."
    if steady:
        return f"Could not be put back here, so one of these explains it: {'; '.join(each.text() for each in steady)}."
    return "Nothing of the environment differs: what decides was not logged, or varies from build to build."


def _put_back(
    gathered: Gathered, differences: Sequence[Difference], backend: IsolatedBackend, repeats: int
) -> Iterator[PutBack]:
    """Builds with one thing as it was then."""
    build = gathered.build
    config, here = build.spec.config, backend.environment()
    given = Caches(calibration=gathered.caches.calibration)
    for what, changed, caches in _builds_to_try(gathered, differences, config, given, here):
        made = make_again("plain", gathered, backend, changed, caches, repeats)
        yield PutBack(what=what, grade=made.grade, why=made.why if made.grade == "cannot be rebuilt" else "")


def _builds_to_try(
    gathered: Gathered, differences: Sequence[Difference], config: BuildConfig, given: Caches, here: Environment
) -> Iterator[tuple[str, BuildConfig, Caches]]:
    options = config.options
    cores = next((each for each in differences if each.what == "device cores"), None)
    if isinstance(options, OnnxRuntimeOptions):
        if cores is not None and not options.intra_op_threads and cores.then:
            threads = replace(config, options=replace(options, intra_op_threads=int(cores.then)))
            yield "device cores", threads, gathered.caches
        # The settings of another release or processor, without its kernels, which may have other names here.
        tactics = replace(
            gathered.build.tactics,
            choices=(),
            backend_version=here.backend_version,
            device_sha256=here.device_sha256,
        )
        yield (
            "settings that the builder chose",
            replace(config, options=replace(options, tactic_seed=None)),
            replace(given, replay=tactics),
        )
