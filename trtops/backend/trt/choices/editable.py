"""Records, replays and replaces tactics through the editable timing cache, on TensorRT 10.8 and later.

In editable mode each op has an entry in the timing cache: a key, and the hash of the chosen tactic. The builder's log
gives the op of a key and the other tactics that were timed for it (:mod:`.autotuning`); the engine inspector gives the
kernel of each layer. A layer belongs to a key only if both agree. A build whose keys are all in the cache times
nothing, so a tactic is replayed by writing the recorded hash, and replaced by writing another one and building again,
as in NVIDIA's sample ``sampleEditableTimingCache``. Layers inside fused regions have no entry, and cannot be replayed.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.choices import autotuning, selector
from trtops.backend.trt.choices.autotuning import Candidate, TimedOp
from trtops.backend.trt.lines import Feature
from trtops.spec import Layer
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticChoice, TacticRecord

# Prefix of a record's settings for entries that belong to no layer.
_ENTRY = "entry "
# Time of a replayed entry. The value does not matter: there is no other candidate.
_MILLISECONDS = 1e-3
# Limit of builds that replace denied tactics: a replacement may change other choices, so several may be needed.
_MAX_REPLACEMENTS = 8


@dataclass
class Editing:
    """Builds with tactics chosen by editing the timing cache; only the first build times tactics."""

    config: Any  # the builder config, in editable mode and with a timing cache; used by every build
    build_once: Callable[[], bytes]  # builds, and returns the plan
    record_of: Callable[[bytes], TacticRecord]  # returns the tactic record of a plan (:func:`to_record`)
    ops: dict[str, TimedOp]  # ops of the cache's keys; builds add those that they time
    notes: list[str] = field(default_factory=list)  # what was replaced, a sentence each; filled by the builds
    left_out: list[str] = field(default_factory=list)  # the denied tactics among them, each with its reason

    def replay(self, record: TacticRecord) -> bytes:
        """Build with a record's tactics, from the timing cache of the recorded build; nothing is timed.

        FormatError if the record was not made through an editable timing cache; TacticMismatchError if the cache lacks
        some of its keys, TensorRT refuses a tactic, or the build chose others.
        """
        recorded_entries = entries_of(record)
        line, config = library.line(), self.config
        # TensorRT updates entries of its cache, but adds none.
        unchanged = line.update_timing_entries(
            config, {key: (value, _MILLISECONDS) for key, value in recorded_entries.items()}
        )
        if unchanged:
            names = _layers_by_key(record)
            selector.raise_mismatch(
                {names.get(key, key): reason for key, reason in unchanged.items()}, len(recorded_entries)
            )
        others = line.timing_entries(config).keys() - recorded_entries.keys()
        # Other entries are removed, by a time of NaN, so that an op that the record lacks cannot use them.
        line.update_timing_entries(config, dict.fromkeys(others, (0, math.nan)))
        line.set_flag(config, Feature.COMPILATION_CACHE_SWITCH)
        line.set_flag(config, Feature.TIMING_CACHE_MISS_ERROR)
        plan = self._build()
        check_replay(config, record)
        return plan

    def carry(self, record: TacticRecord) -> bytes:
        """Build, and again with a record's kernels of another release, for the layers offering them here."""
        plan = self._build()
        recorded_kernels = {choice.layer: (choice.op, choice.kernel) for choice in record.choices if choice.key}
        written = {}
        for choice in self.record_of(plan).choices:
            if (op := self.ops.get(choice.key or "")) is None:
                continue
            for candidate in op.candidates:
                is_recorded = (choice.op, candidate.kernel) == recorded_kernels.get(choice.layer)
                if is_recorded and choice.kernel != candidate.kernel:
                    written[op.key] = (candidate.tactic_hash, candidate.milliseconds)
        if written:
            library.line().update_timing_entries(self.config, written)
            plan = self._build()
        return plan

    def build(self, seed: int | None, denied: DenyList) -> bytes:
        """Build with the fastest tactics, or with random ones; denied tactics are replaced by the next fastest.

        Args:
            seed: See :func:`write_random_choices`; None lets the builder choose.
            denied: Tactics that must not be chosen, all of this device and release.
        """
        plan = self._build()
        if seed is not None:
            write_random_choices(self.config, self.ops.values(), seed)
            plan = self._build()
        for _ in range(_MAX_REPLACEMENTS if denied.entries else 0):
            replaced = replace_denied(self.config, self.record_of(plan), self.ops, denied)
            if not replaced:
                break
            self.notes.extend(replaced.values())
            self.left_out.extend(replaced)
            plan = self._build()
        return plan

    def _build(self) -> bytes:
        # Only this thread: the lines of another thread's build would be mixed in.
        with library.collect_log(verbose=True, this_thread=True) as log:
            plan = self.build_once()
        self.ops.update({op.key: op for op in autotuning.read_log(message for _, message in log.lines)})
        return plan


def check_replay(config: Any, record: TacticRecord) -> None:
    """Raise TacticMismatchError if a build changed, lost or added entries of a replayed record in its cache."""
    entries = library.line().timing_entries(config)
    names = _layers_by_key(record)
    recorded_entries = entries_of(record)
    mismatches = {}
    for key, tactic_hash in recorded_entries.items():
        if key not in entries:
            mismatches[names.get(key, key)] = "the entry is gone"
        elif entries[key][0] != tactic_hash:
            mismatches[names.get(key, key)] = f"tactic {entries[key][0]:#x} instead of {tactic_hash:#x}"
    # Added entries are errors too: the flag for cache misses does not catch every miss.
    for key in entries.keys() - recorded_entries.keys():
        mismatches[key] = f"timed again ({entries[key][0]:#x}): the record has no such entry"
    if mismatches:
        selector.raise_mismatch(mismatches, len(recorded_entries))


def replace_denied(config: Any, record: TacticRecord, ops: Mapping[str, TimedOp], denied: DenyList) -> dict[str, str]:
    """Replace each denied tactic in the timing cache by the fastest allowed one, after a build; the next build uses it.

    Returns a sentence for each replacement, by the reason; none if no denied tactic was chosen, or no other one is
    known or accepted.
    """
    written: dict[str, tuple[int, float]] = {}
    notes: dict[str, tuple[str, str]] = {}
    for choice in record.choices:
        op, why = ops.get(choice.key or ""), denied.why([choice])
        if op is None or why is None:
            continue
        best = None
        for candidate in sorted(op.candidates, key=lambda candidate: candidate.milliseconds):
            if denied.why([_tactic_choice(choice.layer, choice.op, op, candidate)]) is None:
                best = candidate
                break
        if best is None:
            continue
        written[op.key] = (best.tactic_hash, best.milliseconds)
        note = f"{choice.layer}: {choice.tactic} is on the deny-list; {best.kernel} ({best.tactic_hash:#x}) was taken, "
        notes[op.key] = (why, f"{note}{best.milliseconds:g} ms")
    unchanged = library.line().update_timing_entries(config, written)
    return dict(note for key, note in notes.items() if key not in unchanged)


def write_random_choices(config: Any, ops: Iterable[TimedOp], seed: int) -> None:
    """Give each op the fastest of a random half of its tactics, after a build; the next build uses it."""
    # As with algorithm selectors: TensorRT takes the fastest of the half that ``selector.Restriction`` offers.
    held = library.line().timing_entries(config)
    written = {}
    for op in ops:
        if op.key in held and op.candidates:
            # The op's name is in the seed, so the choice does not depend on the order of ops.
            draw = random.Random(f"{seed} {op.op} {len(op.candidates)}")
            drawn = draw.sample(op.candidates, (len(op.candidates) + 1) // 2)
            best = min(drawn, key=lambda candidate: candidate.milliseconds)
            written[op.key] = (best.tactic_hash, best.milliseconds)
    library.line().update_timing_entries(config, written)


def to_record(
    entries: Mapping[str, tuple[int, float]],
    *,
    backend_version: str,
    device_sha256: str,
    layers: tuple[Layer, ...],
    ops: Iterable[TimedOp] = (),
) -> TacticRecord:
    """The tactic record of a build: its layers with their cache entries; other entries become settings.

    ``entries`` are tactic hash and milliseconds by key, after the build; ``ops`` were timed by this build or by those
    that made its cache.
    """
    # Each op belongs to one layer at most, so it is removed from here once its layer is found.
    free = {op.key: op for op in ops if op.key in entries}
    choices = []
    for engine_layer in layers:
        op = _op_of(engine_layer, free.values(), entries)
        if op is None:
            choices.append(selector.unreplayable(engine_layer))
            continue
        del free[op.key]
        tactic_hash = entries[op.key][0]
        chosen = Candidate(tactic_hash=tactic_hash, kernel=op.kernel_of(tactic_hash), milliseconds=0.0)
        choices.append(_tactic_choice(engine_layer.name, engine_layer.op, op, chosen))
    # Entries of no layer, such as those of combinations that were not used, are needed for a replay as well.
    with_layer = {choice.key for choice in choices}
    rest = sorted((f"{_ENTRY}{key}", hex(value)) for key, (value, _) in entries.items() if key not in with_layer)
    return TacticRecord(
        mechanism="editable_timing_cache",
        backend_version=backend_version,
        device_sha256=device_sha256,
        settings=tuple(rest),
        choices=tuple(choices),
    )


def entries_of(record: TacticRecord) -> dict[str, int]:
    """Tactic hashes by timing cache key; FormatError if the record was not made through the editable timing cache."""
    if record.mechanism != "editable_timing_cache":
        raise errors.FormatError(
            f"A record made by {record.mechanism!r} cannot be replayed by {library.line().name}, which replays through "
            "the editable timing cache. Record the tactics on this release."
        )
    entries: dict[str, int] = {}
    for choice in record.choices:
        if choice.key is not None and choice.tactic_id is not None:
            entries[choice.key] = choice.tactic_id
    for name, value in record.settings:
        if name.startswith(_ENTRY):
            entries[name.removeprefix(_ENTRY)] = int(value, 16)
    return entries


def _tactic_choice(layer: str, layer_type: str, op: TimedOp, chosen: Candidate) -> TacticChoice:
    tactic = f"{chosen.kernel} #{chosen.tactic_hash:#018x}"
    return TacticChoice(layer=layer, op=layer_type, tactic=tactic, tactic_id=chosen.tactic_hash, key=op.key)


def _op_of(layer: Layer, ops: Iterable[TimedOp], entries: Mapping[str, tuple[int, float]]) -> TimedOp | None:
    """The op of a layer: kernel and name, or kernel and ONNX nodes, agree; None if it is ambiguous."""
    kernel, number = _kernel_and_number(layer)
    agreeing = []
    for op in ops:
        tactic_hash = entries[op.key][0]
        if tactic_hash == number or (kernel and op.kernel_of(tactic_hash) == kernel):
            agreeing.append(op)
    # TensorRT names a layer after its op with a suffix ("matMul1_myl0_0"). If several ops match ("conv" and "conv_1"
    # for "conv_1_myl0_3"), the longest name is the right one.
    named = [
        op
        for op in agreeing
        if layer.name == op.op or (layer.name.startswith(op.op) and not layer.name[len(op.op)].isalnum())
    ]
    if named:
        return max(named, key=lambda op: len(op.op))
    of_same_node = [op for op in agreeing if set(op.onnx_nodes) & set(layer.onnx_nodes)]
    return of_same_node[0] if len(of_same_node) == 1 else None


def _kernel_and_number(layer: Layer) -> tuple[str, int | None]:
    """The two parts of a layer's tactic, as :meth:`LayerDescription.to_layer` writes it."""
    kernel, separator, text = layer.tactic.rpartition(" #")
    try:
        return (kernel, int(text, 16)) if separator else (layer.tactic, None)
    except ValueError:
        return layer.tactic, None


def _layers_by_key(record: TacticRecord) -> dict[str, str]:
    return {choice.key: choice.layer for choice in record.choices if choice.key is not None}
