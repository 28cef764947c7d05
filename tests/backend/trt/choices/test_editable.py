"""Tactics through the editable timing cache, against a builder that behaves as the header and NVIDIA's sample say.

What each part follows:

- ``TimingCache``: the reference of ``ITimingCache`` (10.8 to 11.4): ``update`` of a missing key returns false; a time
  that is no number removes the entry; ``query`` of an unknown key gives an invalid value.
- ``Key``: the reference of ``TimingCacheKey``: ``0x`` and 32 hexadecimal digits.
- ``Builder``: the README of ``sampleEditableTimingCache`` (10.8): an op whose key is in the cache is not timed;
  others are timed, logged with all tactics, and written into the cache; layers are named after their op with ``_myl0_``
  and a number, and have a kernel's name; a layer that Myelin generates has a kernel of its own and no entry. Ops that
  differ only in name have keys of their own.
- ``escapes``: found on 10.15 to 11.2: the flag that makes a miss fail does not stop every miss.
"""

import copy
import hashlib
import json
import math
import re
from dataclasses import dataclass, field, replace

import pytest

from tests.backend.trt import api
from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.choices import autotuning, editable
from trtops.backend.trt.choices.timing_cache import TimingCache as CacheFile
from trtops.backend.trt.library.log import add_to_collections
from trtops.backend.trt.lines import release_line
from trtops.spec import Layer
from trtops.tactics.denied import DeniedTactic, DenyList
from trtops.tactics.record import TacticRecord, carried_over

TABLE_HEAD = (
    "tactic_id, cost(in ms), cost/fastest_cost, prediction_correlation, kernel_name, tactic_hash, tunable_parameter"
)


@dataclass(frozen=True)
class Key:
    text: str

    @staticmethod
    def parse(text):
        assert re.fullmatch("0x[0-9a-f]{32}", text), text
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
    """An op that the builder times; equal kernels have equal hashes."""

    name: str
    tactics: tuple  # (kernel, milliseconds)
    escapes: bool = False

    @property
    def key(self):
        return Key("0x" + hashlib.sha256(repr((self.name, self.tactics)).encode()).hexdigest()[:32])

    def candidates(self):
        return sorted((ms, kernel, tactic_hash(kernel)) for kernel, ms in self.tactics)


def tactic_hash(kernel):
    return int(hashlib.sha256(kernel.encode()).hexdigest()[:13], 16)


@dataclass
class Config:
    cache: TimingCache = field(default_factory=TimingCache)
    flags: set = field(default_factory=set)

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
        """The plan: each op's kernel."""
        chosen = {}
        for op in self.ops:
            entry = config.cache.entries.get(op.key)
            if entry is None:
                if self.error_on_miss in config.flags and not op.escapes:
                    add_to_collections("ERROR", f"Timing cache miss for {op.name}")
                    raise errors.EngineBuildError("TensorRT returns no plan")
                entry = self._time(op)
                config.cache.entries[op.key] = entry
            chosen[op.name] = next(kernel for _, kernel, value in op.candidates() if value == entry.tacticHash)
        return json.dumps(chosen).encode()

    def _time(self, op):
        self.timed.append(op.name)
        fastest, _, best = op.candidates()[0]
        for line in (
            f"Autotuning op {op.name}(key: {op.key}):",
            "Sorted table of all evaluated tactics:",
            TABLE_HEAD,
            *(f"   {i}, {ms:.7f}, {ms / fastest:.5f}, 0.50673, {kernel}, {value:#x}, "
              for i, (ms, kernel, value) in enumerate(op.candidates(), 3)),
            f"The selected tactic is (tactic hash, cost(in ms)):{best:#x},  {fastest:g}",
            f"Writing the best tactic ({best:#x}) to cache",
        ):  # fmt: skip
            add_to_collections("VERBOSE", line)
        return Value(best, fastest)

    def layers(self, plan):
        """The engine's layers, as the inspector lists them."""
        first, *others = json.loads(plan).items()
        softmax = ("__myl_TraMaxSubExpSum", "__myl_TraMaxSubExpSum_0xcbcb71f1")
        return [
            Layer(name=f"{name}_myl0_{number}", op="kgen" if name.startswith("__myl") else "gemm", tactic=kernel)
            for number, (name, kernel) in enumerate((first, softmax, *others))
        ]


GEMMS = (("sm80_gemm_32x32x64", 0.0112640), ("sm80_gemm_64x32x64_stage4", 0.0118784), ("sm80_gemm_stage5", 0.0123904))
OPS = (Op("matMul1", GEMMS), Op("matMul2", GEMMS), Op("matMul10", GEMMS))
LAYERS = ("matMul1_myl0_0", "matMul2_myl0_2", "matMul10_myl0_3")
WHERE = {"backend_version": "10.8.0", "device_sha256": "d" * 64}


@pytest.fixture(params=["10.8.0", "10.16.1", "11.4.0"], autouse=True)
def release(request, monkeypatch):
    module = copy.copy(api.stand_in(request.param))
    module.TimingCacheKey, module.TimingCacheValue = Key, Value
    line = release_line(module)
    monkeypatch.setattr(library, "line", lambda: line)
    return line


@pytest.fixture
def builder(release):
    return Builder(*OPS, error_on_miss=release.trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)


def editing(builder, config, ops=()):
    ops_by_key = {op.key: op for op in ops}

    def record_of(plan):
        entries = library.line().timing_entries(config)
        return editable.to_record(entries, layers=builder.layers(plan), ops=ops_by_key.values(), **WHERE)

    return editable.Editing(
        config=config, build_once=lambda: builder.build(config), record_of=record_of, ops=ops_by_key
    )


def first_build(builder):
    config = Config()
    editor = editing(builder, config)
    plan = editor.build(None, DenyList())
    return config, editor, plan, editor.record_of(plan)


def test_layers_sharing_a_kernel_keep_their_keys(builder):
    _, editor, _, record = first_build(builder)

    keys = [str(op.key) for op in OPS]
    assert {c.layer: c.key for c in record.choices if c.key} == dict(zip(LAYERS, keys, strict=True))
    assert record.coverage == 0.75  # the layer that Myelin generates has no entry
    assert [c.layer for c in record.choices if not c.replayable] == ["__myl_TraMaxSubExpSum_myl0_1"]
    assert len({op.key for op in editor.ops.values()}) == 3
    assert [c.kernel for c in editor.ops[keys[0]].candidates] == [kernel for kernel, _ in GEMMS]


def test_layer_key_follows_onnx_nodes(builder):
    config, editor, _, _ = first_build(builder)
    ops = [replace(op, onnx_nodes=(f"/{op.op}",)) for op in editor.ops.values()]
    layers = [Layer(name="fc", op="gemm", tactic=GEMMS[0][0], onnx_nodes=("/matMul2",))]

    record = editable.to_record(library.line().timing_entries(config), layers=layers, ops=ops, **WHERE)

    assert record.choices[0].key == str(OPS[1].key)


def test_replay_without_cache_names_the_layers(builder):
    *_, record = first_build(builder)

    with pytest.raises(errors.TacticMismatchError, match="build with the cache of the recorded build") as caught:
        editing(builder, Config()).replay(record)

    assert set(caught.value.layers) == set(LAYERS)


def test_refused_tactic_is_no_missing_entry(builder, monkeypatch):
    config, *_, record = first_build(builder)
    # The header: false as well if the value is invalid.
    monkeypatch.setattr(TimingCache, "update", lambda self, key, value: False)

    with pytest.raises(errors.TacticMismatchError, match="refuses tactic 0x"):
        editing(builder, config).replay(record)


def test_replay_with_cache_times_nothing(builder):
    config, editor, plan, record = first_build(builder)
    builder.timed.clear()

    again = editing(builder, Config(TimingCache.of(config.cache.serialize())), editor.ops.values())

    assert again.replay(TacticRecord.from_json(record.to_json())) == plan
    assert builder.timed == []
    assert again.record_of(plan) == record


def test_another_cuda_keeps_kernels_that_exist(builder):
    editor = editing(builder, Config())
    seed = next(s for s in range(99) if "stage4" in editor.record_of(editor.build(s, DenyList())).choices[0].tactic)
    record = editor.record_of(editing(builder, Config(), editor.ops.values()).build(seed, DenyList()))
    # Timings are part of the keys here, which all change; the second op loses the recorded kernel.
    slower = tuple((kernel, 2 * ms) for kernel, ms in GEMMS)
    lost = record.choices[2].tactic.partition(" ")[0]
    rest = tuple((kernel, ms) for kernel, ms in slower if kernel != lost)
    builder.ops = (Op("matMul1", slower), Op("matMul2", rest), Op("matMul10", slower))

    target = editing(builder, Config())
    carried_record = target.record_of(target.carry(record))

    sentence = carried_over(record, carried_record)
    assert carried_record.differing_layers(record) == ("matMul2_myl0_2",)
    assert sentence.startswith("Of 3 choices") and "2 were carried over" in sentence
    assert f"changed: matMul2_myl0_2 ({lost} became " in sentence and sentence.count(" became ") == 1
    assert not {c.key for c in carried_record.choices if c.key} & {c.key for c in record.choices if c.key}


def test_one_tactic_of_a_record_is_swapped_alone(builder):
    config, editor, _, record = first_build(builder)
    other = tactic_hash("sm80_gemm_64x32x64_stage4")
    choices = (replace(c, tactic_id=other) if c.layer.startswith("matMul2") else c for c in record.choices)

    again = editing(builder, Config(TimingCache.of(config.cache.serialize())), editor.ops.values())
    record_of_swap = again.record_of(again.replay(replace(record, choices=tuple(choices))))

    assert record_of_swap.differing_layers(record) == ("matMul2_myl0_2",)
    assert "sm80_gemm_64x32x64_stage4" in record_of_swap.choices[2].tactic


def test_replay_with_a_timed_op_is_refused(builder):
    escaping = Op("matMul3", GEMMS, escapes=True)
    config, editor, _, record = first_build(builder)

    builder.ops = (*OPS, escaping)
    with pytest.raises(errors.TacticMismatchError, match="timed again") as caught:
        editing(builder, Config(TimingCache.of(config.cache.serialize())), editor.ops.values()).replay(record)

    assert caught.value.layers == (str(escaping.key),)


def test_replay_ignores_entries_of_other_models(builder):
    config, editor, _, record = first_build(builder)
    stranger = Op("stranger", GEMMS)
    shared = TimingCache.of(config.cache.serialize())
    shared.entries[stranger.key] = Value(tactic_hash("sm80_gemm_stage5"), 1.0)
    builder.ops = (*OPS, stranger)

    with pytest.raises(errors.EngineBuildError, match="no plan"):
        editing(builder, Config(shared), editor.ops.values()).replay(record)


def test_changed_or_dropped_entry_is_named(builder):
    config, _, _, record = first_build(builder)
    config.cache.entries[OPS[1].key] = Value(0x99, 1.0)
    del config.cache.entries[OPS[2].key]

    with pytest.raises(errors.TacticMismatchError, match="0x99 instead of") as caught:
        editable.check_replay(config, record)

    assert set(caught.value.layers) == {"matMul2_myl0_2", "matMul10_myl0_3"}
    assert "the entry is gone" in str(caught.value)


def test_next_fastest_replaces_a_denied_tactic(builder):
    *_, record = first_build(builder)
    denied, before = DenyList(), record

    # The last has no alternative, and stays.
    for kernel in ("sm80_gemm_64x32x64_stage4", "sm80_gemm_stage5", "sm80_gemm_32x32x64"):
        assert before.choices[0].layer == "matMul1_myl0_0"
        entry = DeniedTactic(**WHERE, choices=before.choices[:1], evidence="abc")
        denied = DenyList(entries=(*denied.entries, entry))
        again = editing(builder, Config())
        before = again.record_of(again.build(None, denied))
        assert kernel in before.choices[0].tactic
        assert set(before.differing_layers(record)) <= {"matMul1_myl0_0"}
        if kernel == "sm80_gemm_64x32x64_stage4":
            assert again.notes == [
                f"matMul1_myl0_0: sm80_gemm_32x32x64 #{tactic_hash('sm80_gemm_32x32x64'):#018x} is on the deny-list; "
                f"{kernel} ({tactic_hash(kernel):#x}) was taken, 0.0118784 ms"
            ]
            assert [" of matMul1_myl0_0 is denied by run abc" in reason for reason in again.left_out] == [True]
    assert denied.why(before.choices) is not None and again.notes == []


def test_seeds_draw_tactics_repeatably(builder):
    def drawn(seed):
        editor = editing(builder, Config())
        return editor.record_of(editor.build(seed, DenyList()))

    assert drawn(3) == drawn(3)
    assert len({drawn(seed).digest for seed in range(8)}) > 1


def test_cache_file_names_the_ops_of_keys(builder):
    config, editor, _, record = first_build(builder)
    file = CacheFile(data=config.cache.serialize(), entries=3, ops=tuple(editor.ops.values()))

    read = CacheFile.from_bytes(file.to_bytes())

    again = editing(builder, Config(TimingCache.of(read.data)), read.ops)
    # Nothing is timed: without the table no layer would have a key.
    assert again.record_of(again.build(None, DenyList())) == record
    assert builder.timed == [op.name for op in OPS]


def test_the_readmes_own_lines_are_read():
    # The table that the README of sampleEditableTimingCache prints, in one message and in several.
    lines = [
        "Autotuning op matMul1(key: 0x1814870c44ff0f8574df6e3dda04cbd7): [ONNX Layer: /fc]",  # nodes since 11
        "Sorted table of all evaluated tactics:",
        TABLE_HEAD,
        "   3, 0.0112640, 1.00000, 0.50673, sm80_xmma_gemm_a, 0x665ded9abbf88,",
        "   5, 0.0118784, 1.05455, 0.51157, sm80_xmma_gemm_b, 0x393e4ef8ad243,",
        "The selected tactic is (tactic hash, cost(in ms)):0x665ded9abbf88,  0.011264",
        "Writing the best tactic (0x665ded9abbf88) to cache",
    ]

    (op,) = autotuning.read_log(lines)

    assert (op.op, op.key, op.onnx_nodes) == ("matMul1", "0x1814870c44ff0f8574df6e3dda04cbd7", ("/fc",))
    assert [(c.kernel, c.tactic_hash, c.milliseconds) for c in op.candidates] == [
        ("sm80_xmma_gemm_a", 0x665DED9ABBF88, 0.011264),
        ("sm80_xmma_gemm_b", 0x393E4EF8AD243, 0.0118784),
    ]
    assert autotuning.read_log(["\n".join(lines)]) == (op,)
    assert autotuning.read_log(lines[:5]) == ()  # the build ended in the middle
