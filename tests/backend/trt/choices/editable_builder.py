"""A builder with a timing cache in editable mode, as the header and NVIDIA's sample describe them, without a GPU.

What each part follows:

- ``TimingCache``: the reference of ``ITimingCache`` (10.8 to 11.4): ``update`` of a missing key returns false; a time
  that is no number removes the entry; ``query`` of an unknown key gives an invalid value.
- ``Key``: the reference of ``TimingCacheKey``: ``0x`` and 32 hexadecimal digits.
- ``Builder.build``: the README of ``sampleEditableTimingCache`` (10.8): an op whose key is in the cache is not timed;
  others are timed, logged with all tactics, and written into the cache; layers are named after their op with ``_myl0_``
  and a number, and have a kernel's name; a layer that Myelin generates has a kernel of its own and no entry. Ops that
  differ only in name have keys of their own.
- ``escapes``: found on 10.15 to 11.2: the flag that makes a miss fail does not stop every miss.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from dataclasses import dataclass, field
from types import SimpleNamespace

from tests.backend.trt import api
from trtops.backend.trt.library.log import add_to_collections
from trtops.spec import Layer

TABLE_HEAD = (
    "tactic_id, cost(in ms), cost/fastest_cost, prediction_correlation, kernel_name, tactic_hash, tunable_parameter"
)


@dataclass(frozen=True)
class Key:
    text: str

    @staticmethod
    def parse(text):
        assert text.startswith("0x"), text
        assert len(text) == 34, text
        return Key(text)

    def __str__(self):
        return self.text


@dataclass(frozen=True)
class Value:
    tacticHash: int
    timingMSec: float


@dataclass
class TimingCache:
    entries: dict = field(default_factory=dict)

    def queryKeys(self):
        return list(self.entries)

    def query(self, key):
        return self.entries.get(key, Value(0, math.nan))

    def update(self, key, value):
        if key not in self.entries:
            return False
        if math.isnan(value.timingMSec):
            del self.entries[key]
        else:
            self.entries[key] = value
        return True

    def serialize(self):
        return json.dumps({str(k): [v.tacticHash, v.timingMSec] for k, v in self.entries.items()}).encode()

    @classmethod
    def of(cls, data):
        return cls({Key(k): Value(*v) for k, v in json.loads(data or b"{}").items()})


@dataclass(frozen=True)
class Op:
    """An op that the builder times.

    ``tactics`` are (kernel, milliseconds); hashes follow from the kernel, so equal kernels have equal hashes.
    """

    name: str
    tactics: tuple
    escapes: bool = False

    @property
    def key(self):
        return Key("0x" + hashlib.sha256(repr((self.name, self.tactics)).encode()).hexdigest()[:32])

    def candidates(self):
        return sorted((ms, kernel, tactic_hash(kernel)) for kernel, ms in self.tactics)


def tactic_hash(kernel):
    """The number of a kernel's tactic."""
    return int(hashlib.sha256(kernel.encode()).hexdigest()[:13], 16)


class Config:
    def __init__(self, cache=None):
        self.cache = cache if cache is not None else TimingCache()
        self.flags = set()

    def get_timing_cache(self):
        return self.cache

    def set_flag(self, flag):
        self.flags.add(flag)


class Builder:
    """Builds a chain of ops, with a softmax that Myelin generates between the first two."""

    def __init__(self, *ops, error_on_miss=None):
        self.ops = ops
        self.error_on_miss = error_on_miss
        self.timed = []

    def build(self, config):
        """The plan: each op's kernel; None if a miss must fail."""
        chosen = {}
        for op in self.ops:
            found = config.cache.entries.get(op.key)
            if found is None:
                if self.error_on_miss in config.flags and not op.escapes:
                    add_to_collections("ERROR", f"Timing cache miss for {op.name}")
                    return None
                found = self._time(op)
                config.cache.entries[op.key] = found
            chosen[op.name] = next(kernel for _, kernel, value in op.candidates() if value == found.tacticHash)
        return json.dumps(chosen).encode()

    def _time(self, op):
        self.timed.append(op.name)
        say(f"Autotuning op {op.name}(key: {op.key}):")
        say("Sorted table of all evaluated tactics:")
        say(TABLE_HEAD)
        fastest = op.candidates()[0][0]
        for index, (ms, kernel, value) in enumerate(op.candidates()):
            say(f"   {index + 3}, {ms:.7f}, {ms / fastest:.5f}, 0.50673, {kernel}, {value:#x}, ")
        ms, _, value = op.candidates()[0]
        say(f"The selected tactic is (tactic hash, cost(in ms)):{value:#x},  {ms:g}")
        say(f"Writing the best tactic ({value:#x}) to cache")
        return Value(value, ms)

    def layers(self, plan):
        """The engine's layers, as the inspector lists them."""
        found = [
            Layer(name=f"{name}_myl0_{number + (number > 0)}", op="gemm", tactic=kernel)
            for number, (name, kernel) in enumerate(json.loads(plan).items())
        ]
        softmax = Layer(name="__myl_TraMaxSubExpSum_myl0_1", op="kgen", tactic="__myl_TraMaxSubExpSum_0xcbcb71f1")
        return (found[0], softmax, *found[1:])


def say(line):
    """Put a line into TensorRT's verbose log."""
    add_to_collections("VERBOSE", line)


def module(release):
    """The stand-in of a release, with keys and values behind their names."""
    made = copy.copy(api.stand_in(release))
    made.TimingCacheKey = SimpleNamespace(parse=Key.parse)
    made.TimingCacheValue = Value
    return made
