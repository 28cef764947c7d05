"""Tactics through the editable timing cache; against a builder that behaves as the header and NVIDIA's sample say."""

from dataclasses import replace

import pytest

from tests.backend.trt.choices.editable_builder import (
    TABLE_HEAD,
    Builder,
    Config,
    Op,
    TimingCache,
    Value,
    module,
    tactic_hash,
)
from trtops import errors
from trtops.backend.trt import library
from trtops.backend.trt.choices import autotuning, editable
from trtops.backend.trt.choices.timing_cache import TimingCache as CacheFile
from trtops.backend.trt.lines import release_line
from trtops.spec import Layer
from trtops.tactics.denied import DeniedTactic, DenyList
from trtops.tactics.record import TacticRecord

GEMMS = (("sm80_gemm_32x32x64", 0.0112640), ("sm80_gemm_64x32x64_stage4", 0.0118784), ("sm80_gemm_stage5", 0.0123904))
OPS = (Op("matMul1", GEMMS), Op("matMul2", GEMMS), Op("matMul10", GEMMS))
WHERE = {"backend_version": "10.8.0", "device_sha256": "d" * 64}


@pytest.fixture(params=["10.8.0", "10.16.1", "11.4.0"], autouse=True)
def release(request, monkeypatch):
    line = release_line(module(request.param))
    monkeypatch.setattr(library, "line", lambda: line)
    return line


@pytest.fixture
def builder(release):
    return Builder(*OPS, error_on_miss=release.trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)


def editing(builder, config, ops=()):
    known = {op.key: op for op in ops}

    def build_once():
        plan = builder.build(config)
        if plan is None:
            raise errors.EngineBuildError("a miss")
        return plan

    def record_of(plan):
        entries = library.line().timing_entries(config)
        return editable.to_record(entries, layers=builder.layers(plan), ops=known.values(), **WHERE)

    return editable.Editing(config=config, build_once=build_once, record_of=record_of, ops=known)


def first_build(builder):
    config = Config()
    made = editing(builder, config)
    plan = made.build(None, DenyList())
    return config, made, plan, made.record_of(plan)


def test_layers_sharing_a_kernel_keep_their_keys(builder):
    _, made, _, record = first_build(builder)

    assert {c.layer: c.key for c in record.choices if c.key} == {
        "matMul1_myl0_0": str(OPS[0].key),
        "matMul2_myl0_2": str(OPS[1].key),
        "matMul10_myl0_3": str(OPS[2].key),
    }
    assert record.coverage == 0.75  # the layer that Myelin generates has no entry
    assert [c.layer for c in record.choices if not c.replayable] == ["__myl_TraMaxSubExpSum_myl0_1"]
    assert len({op.key for op in made.ops.values()}) == 3
    assert [c.kernel for c in made.ops[str(OPS[0].key)].candidates] == [kernel for kernel, _ in GEMMS]


def test_layer_key_follows_onnx_nodes(builder):
    config, made, _, _ = first_build(builder)
    ops = [replace(op, onnx_nodes=(f"/{op.op}",)) for op in made.ops.values()]
    layers = [Layer(name="fc", op="gemm", tactic=GEMMS[0][0], onnx_nodes=("/matMul2",))]

    record = editable.to_record(library.line().timing_entries(config), layers=layers, ops=ops, **WHERE)

    assert record.choices[0].key == str(OPS[1].key)


def test_replay_without_cache_names_the_layers(builder):
    *_, record = first_build(builder)

    with pytest.raises(errors.TacticMismatchError, match="build with the cache of the recorded build") as caught:
        editing(builder, Config()).replay(record)

    assert set(caught.value.layers) == {"matMul1_myl0_0", "matMul2_myl0_2", "matMul10_myl0_3"}


def test_replay_with_cache_times_nothing(builder):
    config, made, plan, record = first_build(builder)
    builder.timed.clear()

    again = editing(builder, Config(TimingCache.of(config.cache.serialize())), made.ops.values())

    assert again.replay(TacticRecord.from_json(record.to_json())) == plan
    assert builder.timed == []
    assert again.record_of(plan) == record


def test_one_tactic_of_a_record_is_swapped_alone(builder):
    config, made, _, record = first_build(builder)
    other = tactic_hash("sm80_gemm_64x32x64_stage4")
    choices = (replace(c, tactic_id=other) if c.layer.startswith("matMul2") else c for c in record.choices)
    swapped = replace(record, choices=tuple(choices))

    again = editing(builder, Config(TimingCache.of(config.cache.serialize())), made.ops.values())
    record_of_swap = again.record_of(again.replay(swapped))

    assert record_of_swap.differing_layers(record) == ("matMul2_myl0_2",)
    assert "sm80_gemm_64x32x64_stage4" in record_of_swap.choices[2].tactic


def test_replay_with_a_timed_op_is_refused(builder):
    escaping = Op("matMul3", GEMMS, escapes=True)
    config, made, _, record = first_build(builder)

    builder.ops = (*OPS, escaping)
    with pytest.raises(errors.TacticMismatchError, match="timed again") as caught:
        editing(builder, Config(TimingCache.of(config.cache.serialize())), made.ops.values()).replay(record)

    assert caught.value.layers == (str(escaping.key),)


def test_replay_ignores_entries_of_other_models(builder):
    config, made, _, record = first_build(builder)
    stranger = Op("stranger", GEMMS)
    shared = TimingCache.of(config.cache.serialize())
    shared.entries[stranger.key] = Value(tactic_hash("sm80_gemm_stage5"), 1.0)
    builder.ops = (*OPS, stranger)

    with pytest.raises(errors.EngineBuildError, match="a miss"):
        editing(builder, Config(shared), made.ops.values()).replay(record)


def test_changed_or_dropped_entry_is_named(builder):
    config, _, _, record = first_build(builder)
    config.cache.entries[OPS[1].key] = Value(0x99, 1.0)
    del config.cache.entries[OPS[2].key]

    with pytest.raises(errors.TacticMismatchError, match="0x99 instead of") as caught:
        editable.check_replay(config, record)

    assert set(caught.value.layers) == {"matMul2_myl0_2", "matMul10_myl0_3"}
    assert "the entry is gone" in str(caught.value)


def denying(record, *layers):
    choices = tuple(c for c in record.choices if c.layer in layers)
    return DenyList(entries=(DeniedTactic(**WHERE, choices=choices, evidence="abc"),))


def test_next_fastest_replaces_a_denied_tactic(builder):
    *_, record = first_build(builder)
    denied, before = DenyList(), record

    # The last has no alternative, and stays.
    for kernel in ("sm80_gemm_64x32x64_stage4", "sm80_gemm_stage5", "sm80_gemm_32x32x64"):
        denied = DenyList(entries=denied.entries + denying(before, "matMul1_myl0_0").entries)
        again = editing(builder, Config())
        before = again.record_of(again.build(None, denied))
        assert kernel in before.choices[0].tactic
        assert set(before.differing_layers(record)) <= {"matMul1_myl0_0"}
        if kernel == "sm80_gemm_64x32x64_stage4":
            assert again.notes == [
                f"matMul1_myl0_0: sm80_gemm_32x32x64 #{tactic_hash('sm80_gemm_32x32x64'):#018x} is on the deny-list; "
                f"{kernel} ({tactic_hash(kernel):#x}) was taken, 0.0118784 ms"
            ]
    assert denied.why(before.choices) is not None and again.notes == []


def test_seeds_draw_tactics_repeatably(builder):
    def drawn(seed):
        made = editing(builder, Config())
        return made.record_of(made.build(seed, DenyList()))

    assert drawn(3) == drawn(3)
    assert len({drawn(seed).digest for seed in range(8)}) > 1


def test_cache_file_names_the_ops_of_keys(builder):
    config, made, _, record = first_build(builder)
    file = CacheFile(data=config.cache.serialize(), entries=3, ops=tuple(made.ops.values())).to_bytes()

    read = CacheFile.from_bytes(file)

    again = editing(builder, Config(TimingCache.of(read.data)), read.ops)
    plan = again.build(None, DenyList())
    assert again.record_of(plan) == record  # nothing was timed: without the table no layer would have a key
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
