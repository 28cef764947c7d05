"""Recording and replaying tactics through the editable timing cache, on TensorRT 10.8 and later.

In editable mode every layer has an entry of its own in the timing cache: a key, and the hash of the tactic that was
chosen. A replay writes the recorded hashes back, forbids the builder to time anything else, and checks afterwards that they
are still there. Hashes are compared, not the cache's bytes. Layers inside fused regions have no entry; they are recorded as
not replayable.
"""

from __future__ import annotations

from typing import Any

from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.choices import selector
from trtops.spec import Layer
from trtops.tactics.record import TacticChoice, TacticRecord

_ENTRY = "entry "
_MILLISECONDS = 1e-3
"""Time given for a replayed entry. Any will do: there is no other candidate to compare it with."""


def prepare_replay(config: Any, record: TacticRecord) -> None:
    """Write a record's entries into the timing cache of a builder config, and forbid the builder to time anything.

    Args:
        config: A builder config in editable mode, with a timing cache that has the recorded keys.
        record: A record made by :func:`to_record`.

    Raises:
        FormatError: If the record was not made through the editable timing cache.
        TacticMismatchError: If the cache lacks some of its keys.
    """
    entries = entries_of(record)
    line = library.line()
    unknown = line.update_timing_entries(config, {key: (value, _MILLISECONDS) for key, value in entries.items()})
    if unknown:
        names = _layers_by_key(record)
        selector.raise_mismatch(
            {names.get(k, k): "no entry of this key in the timing cache" for k in unknown}, len(entries)
        )
    line.disable_compilation_cache(config)
    line.fail_on_timing_cache_miss(config)


def check_replay(config: Any, record: TacticRecord) -> None:
    """After a build, compare the builder config's timing cache with the record that was replayed.

    Raises:
        TacticMismatchError: If some entry holds another tactic.
    """
    found = library.line().timing_entries(config)
    names = _layers_by_key(record)
    wanted = entries_of(record)
    differing = {
        names.get(key, key): f"tactic {found[key][0]:#x} instead of {value:#x}" if key in found else "the entry is gone"
        for key, value in wanted.items()
        if key not in found or found[key][0] != value
    }
    if differing:
        selector.raise_mismatch(differing, len(wanted))


def to_record(
    entries: dict[str, tuple[int, float]], *, backend_version: str, device_sha256: str, layers: tuple[Layer, ...]
) -> TacticRecord:
    """The record of a build: the engine's layers, each with its entry in the cache, and the other entries as settings.

    Args:
        entries: Tactic hash and milliseconds by key, after the build.
        backend_version: TensorRT's release.
        device_sha256: The kind of device.
        layers: The engine's layers, whose tactics end in the tactic's number where the inspector has it.
    """
    # Keys do not name layers; the tactic's hash joins the two. Layers with the same tactic get its keys in order, which may swap
    # keys among them: a replay writes the same hash for all of these.
    keys_by_hash: dict[int, list[str]] = {}
    for key, (tactic_hash, _) in entries.items():
        keys_by_hash.setdefault(tactic_hash, []).append(key)
    choices = []
    for found in layers:
        tactic_id = _hash_of(found)
        keys = [] if tactic_id is None else keys_by_hash.get(tactic_id, [])
        if not keys:
            choices.append(selector.unreplayable(found))
            continue
        choices.append(
            TacticChoice(layer=found.name, op=found.op, tactic=found.tactic, tactic_id=tactic_id, key=keys.pop(0))
        )
    rest = sorted((f"{_ENTRY}{key}", hex(tactic_hash)) for tactic_hash, keys in keys_by_hash.items() for key in keys)
    return TacticRecord(
        mechanism="editable_timing_cache",
        backend_version=backend_version,
        device_sha256=device_sha256,
        settings=tuple(rest),
        choices=tuple(choices),
    )


def entries_of(record: TacticRecord) -> dict[str, int]:
    """Tactic hashes by timing cache key.

    Raises:
        FormatError: If the record was not made through the editable timing cache.
    """
    if record.mechanism != "editable_timing_cache":
        raise errors.FormatError(
            f"A record made by {record.mechanism!r} cannot be replayed by {library.line().name}, which replays through "
            "the editable timing cache. Record the tactics on this release."
        )
    entries = {choice.key: choice.tactic_id for choice in record.choices if choice.key is not None}
    others = {name[len(_ENTRY) :]: int(value, 16) for name, value in record.settings if name.startswith(_ENTRY)}
    return {**{key: value for key, value in entries.items() if value is not None}, **others}


def _layers_by_key(record: TacticRecord) -> dict[str, str]:
    return {choice.key: choice.layer for choice in record.choices if choice.key is not None}


def _hash_of(layer: Layer) -> int | None:
    """The tactic's number at the end of a layer's tactic (:meth:`LayerDescription.to_layer`); None if there is none."""
    _, found, value = layer.tactic.rpartition(" #")
    try:
        return int(value, 16) if found else None
    except ValueError:
        return None
