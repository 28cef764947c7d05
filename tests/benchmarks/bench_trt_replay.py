"""Seconds of a replay beside those of a build, on TensorRT with algorithm selectors (8.6): where do they go, and what saves them?

    python tests/benchmarks/bench_trt_replay.py                                # a small network, within a minute
    TRTOPS_BENCH_SECONDS=600 python tests/benchmarks/bench_trt_replay.py small cnn transformer resnet50 eager

Each variant builds the same network in FP16. Printed for each: wall seconds; how often TensorRT asked the selector, how many
tactics it offered and was allowed; how many timings its log tells; the seconds between its log's messages, by what was being
timed; whether the replay was followed in every layer, and which of its layers got the same kernel as in the recorded build.
With ``OUT`` set, everything is written to ``$OUT/bench_trt_replay.jsonl``.
"""

from __future__ import annotations

import collections
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import onnx

from tests import models
from tests.benchmarks.resnet import write_resnet50
from trtops import errors
from trtops.backend.trt import (
    CreateConfig,
    TacticRecorder,
    TacticReplayData,
    TacticReplayer,
    engine_from_bytes,
    library,
    network_from_onnx_bytes,
)
from trtops.backend.trt.building.engine import build_plan
from trtops.backend.trt.building.profile import Profile
from trtops.backend.trt.choices import timing_cache
from trtops.backend.trt.describe.inspector import read_layers

LIMIT = float(os.environ.get("TRTOPS_BENCH_SECONDS", "60"))
"""After so many seconds no further variant is begun."""

GOAL = 5.0
"""How many times faster than a build a replay is to be."""

COPY = "Reformatting CopyNode"


def cnn() -> onnx.ModelProto:
    """Nine layers: five convolutions with a stem, a branch that is added, a pool and a head."""
    sizes = {
        "w0": (64, 3, 3, 3),
        "w1": (64, 64, 3, 3),
        "w2": (64, 64, 1, 1),
        "w3": (128, 64, 3, 3),
        "w4": (16, 128, 1, 1),
    }
    weights = {name: models.random(*shape, seed=i, scale=0.08) for i, (name, shape) in enumerate(sizes.items())}
    return models.model(
        """(float[8,3,56,56] x) => (float[8,16,14,14] y) {
            [conv0] c0 = Conv<pads = [1,1,1,1]>(x, w0)
            [relu0] r0 = Relu(c0)
            [conv1] c1 = Conv<pads = [1,1,1,1]>(r0, w1)
            [conv2] c2 = Conv(r0, w2)
            [add] a = Add(c1, c2)
            [relu1] r1 = Relu(a)
            [pool] p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(r1)
            [conv3] c3 = Conv<pads = [1,1,1,1], strides = [2,2]>(p, w3)
            [relu3] r3 = Relu(c3)
            [conv4] y = Conv(r3, w4)
        }""",
        weights,
        name="cnn",
    )


def small() -> onnx.ModelProto:
    """Two convolutions of 32 channels with an activation between them."""
    weights = {f"w{i}": models.random(32, 32, 3, 3, seed=i, scale=0.08) for i in range(2)}
    return models.model(
        """(float[4,32,28,28] x) => (float[4,32,28,28] y) {
            [conv0] a = Conv<pads = [1,1,1,1]>(x, w0)
            [relu0] b = Relu(a)
            [conv1] y = Conv<pads = [1,1,1,1]>(b, w1)
        }""",
        weights,
        name="small",
    )


def transformer() -> onnx.ModelProto:
    return models.transformer().proto


def resnet50() -> onnx.ModelProto:
    with tempfile.TemporaryDirectory(prefix="trtops-bench-") as folder:
        return onnx.load(write_resnet50(Path(folder) / "resnet50.onnx"))


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "small": small,
    "cnn": cnn,
    "transformer": transformer,
    "resnet50": resnet50,
}


class Asked:
    """What TensorRT asked a selector, and how long the answers took."""

    def __init__(self, selector: Any) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self.seconds = 0.0
        kind = type(selector)  # made anew for each selector, so changing it changes no other
        answer = kind.select_algorithms

        def counted(selector: Any, context: Any, choices: list[Any]) -> list[int]:
            started = time.perf_counter()
            kept = answer(selector, context, choices)
            self.seconds += time.perf_counter() - started
            self.calls.append((context.name, len(choices), len(kept)))
            return kept

        kind.select_algorithms = counted


class TimedLog(logging.Handler):
    """TensorRT's messages with the time of each."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((time.perf_counter(), record.getMessage()))

    def __enter__(self) -> TimedLog:
        logger = logging.getLogger("trtops.tensorrt")
        self.level_before = (logger.level, logger.propagate)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logger = logging.getLogger("trtops.tensorrt")
        logger.removeHandler(self)
        logger.level, logger.propagate = self.level_before

    def spent(self) -> dict[str, Any]:
        """Seconds between messages by what was going on, timings per kind of runner, and the longest waits."""
        seconds: dict[str, float] = collections.defaultdict(float)
        timings: dict[str, int] = collections.defaultdict(int)
        waits: list[tuple[float, str, str]] = []
        doing = "before the first timing"
        for (before, last), (now, message) in zip(self.lines, self.lines[1:]):
            if match := re.search(r"Timing Runner: (.*) \((\w+)\[?", last):
                doing = f"timing {match[2]}"
            elif last.startswith(("***************", "===============")):
                doing = "between timings"
            elif "Formats and tactics selection completed" in last:
                doing = "after selection"
            seconds[doing] += now - before
            waits.append((now - before, last[:110], message[:110]))
            if "Time: " in message:
                timings[doing] += 1
        waits.sort(reverse=True)
        return {
            "by_phase": {name: round(s, 3) for name, s in sorted(seconds.items(), key=lambda x: -x[1])[:12]},
            "timings": dict(timings),
            "longest": [(round(s, 3), a, b) for s, a, b in waits[:8]],
            "said": [m[:160] for _, m in self.lines if re.search(r"timing cache|CUDA lazy|completed in", m, re.I)][:12],
        }


@dataclass
class Bench:
    """One network, and what its builds left for the later ones."""

    name: str
    proto: onnx.ModelProto
    rows: list[dict[str, Any]] = field(default_factory=list)
    recorded: TacticReplayData = field(default_factory=TacticReplayData)
    behind: TacticReplayData = field(default_factory=TacticReplayData)
    kernels: list[tuple[str, str, str]] = field(default_factory=list)
    caches: dict[str, bytes] = field(default_factory=dict)

    def build(
        self,
        title: str,
        *,
        selector: Any = None,
        change: Callable[[Any, Any], None] | None = None,
        timed_first: bool = False,
        **options: Any,
    ) -> None:
        """Build once, print what came of it, and keep its timing cache under the title.

        With ``timed_first`` the network is built without the selector before, with the same config.
        """
        trt = library.load()
        builder, network, _parser = network_from_onnx_bytes(self.proto.SerializeToString())
        profiles = [Profile({"image": ((4, 3, 224, 224),) * 3})] if self.name == "resnet50" else None
        options = {"fp16": True, "profiles": profiles, **options}
        config = CreateConfig(algorithm_selector=None if timed_first else selector, **options)(builder, network)
        if change is not None:
            change(trt, config)
        asked = None if selector is None else Asked(selector)
        row: dict[str, Any] = {"model": self.name, "variant": title}
        read = timing_cache.held(config) if options.get("load_timing_cache") else None
        with TimedLog() as log:
            started = time.perf_counter()
            try:
                if timed_first:
                    build_plan(builder, network, config)
                    config.algorithm_selector = selector
                plan = bytes(build_plan(builder, network, config, selector=selector))
            except errors.TrtopsError as exc:
                plan, row["failed"] = b"", str(exc)[:600]
            row["seconds"] = round(time.perf_counter() - started, 3)
        cache = timing_cache.collect(config, None, None, 0.0)
        if cache is not None:
            self.caches[title] = cache.data
            row["cache_entries"] = {"read": read, "after": cache.entries}
        if asked is not None:
            kept = [(name, offered, allowed) for name, offered, allowed in asked.calls]
            unknown = [call for call in kept if call[0] not in self.recorded]
            row["selector"] = {
                "calls": len(kept),
                "offered": sum(call[1] for call in kept),
                "allowed": sum(call[2] for call in kept),
                "not_recorded": len(unknown),
                "allowed_of_not_recorded": sum(call[2] for call in unknown),
                "seconds": round(asked.seconds, 3),
            }
        if plan:
            layers = [(x.name, str(x.tactic), str(x.tactic_value)) for x in read_layers(engine_from_bytes(plan))]
            if not self.kernels and title == "recorded":
                self.kernels = layers
            mine, theirs = (
                {x for x in found if not x[0].startswith(COPY)} for found in (layers, self.kernels or layers)
            )
            row["layers"] = {"all": len(layers), "as_recorded": len(mine & theirs), "of": len(theirs)}
        row.update(log.spent())
        self.rows.append(row)
        show(row)

    def replayer(self) -> Any:
        return TacticReplayer(self.recorded)


def show(row: dict[str, Any]) -> None:
    print(json.dumps({key: value for key, value in row.items() if key not in ("longest", "said")}), flush=True)
    for wait in row.get("longest", ())[:3]:
        print("      ", *wait, sep=" | ", flush=True)
    if out := os.environ.get("OUT"):
        with open(Path(out) / "bench_trt_replay.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def strict(replayer: Any) -> Any:
    """A replayer that allows one tactic also of layers that were not recorded."""
    kind = type(replayer)
    answer = kind.select_algorithms

    def one_only(selector: Any, context: Any, choices: list[Any]) -> list[int]:
        return answer(selector, context, choices)[:1]

    kind.select_algorithms = one_only
    return replayer


def flag(name: str, wanted: bool = True) -> Callable[[Any, Any], None]:
    def change(trt: Any, config: Any) -> None:
        (config.set_flag if wanted else config.clear_flag)(trt.BuilderFlag.__members__[name])

    return change


def one_iteration(trt: Any, config: Any) -> None:
    config.min_timing_iterations = 1
    config.avg_timing_iterations = 1


def no_external_sources(trt: Any, config: Any) -> None:
    sources = trt.TacticSource.__members__
    wanted = [sources[name] for name in ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS") if name in sources]
    config.set_tactic_sources(sum(1 << int(source) for source in wanted))


def no_jit(trt: Any, config: Any) -> None:
    source = trt.TacticSource.__members__.get("JIT_CONVOLUTIONS")
    if source is not None:
        config.set_tactic_sources(config.get_tactic_sources() & ~(1 << int(source)))


def combined(bench: Bench, *titles: str) -> bytes:
    """Timing caches of several builds in one, as TensorRT merges them; what it cannot merge is left out."""
    builder = library.make_builder()
    config = builder.create_builder_config()
    whole = timing_cache.TimingCache(data=bench.caches[titles[0]])
    timing_cache.apply(config, whole)
    for title in titles[1:]:
        whole = timing_cache.merge(config, whole, timing_cache.TimingCache(data=bench.caches[title]))
    return whole.data


def variants(bench: Bench) -> list[Callable[[], None]]:
    """In order of what they tell; later ones need what earlier ones left."""
    build, caches = bench.build, bench.caches
    return [
        lambda: build("first build of the process", builder_optimization_level=0),
        lambda: build("build"),
        lambda: build("build, its own cache", load_timing_cache=caches["build"]),
        lambda: build("recorded", selector=TacticRecorder(bench.recorded), load_timing_cache=b""),
        lambda: build("recorded behind an unwatched build", selector=TacticRecorder(bench.behind), timed_first=True, load_timing_cache=b""),
        lambda: build("replay, cache of the build recorded so", selector=TacticReplayer(bench.behind), load_timing_cache=caches["recorded behind an unwatched build"]),
        lambda: build("replay, cache disabled", selector=bench.replayer()),
        lambda: build("replay, cache of the recorded build", selector=bench.replayer(), load_timing_cache=caches["recorded"]),
        lambda: build("replay, cache of the unwatched build", selector=bench.replayer(), load_timing_cache=caches["build"]),
        lambda: build("replay, one tactic of every layer, cache of the recorded build", selector=strict(bench.replayer()), load_timing_cache=caches["recorded"]),
        lambda: build("replay, empty cache", selector=bench.replayer(), load_timing_cache=b""),
        lambda: build("replay, cache of a replay", selector=bench.replayer(), load_timing_cache=caches["replay, empty cache"]),
        lambda: build("replay, caches of recorded and unwatched combined", selector=bench.replayer(), load_timing_cache=combined(bench, "recorded", "build")),
        lambda: build("replay, no JIT convolutions, cache of the recorded build", selector=bench.replayer(), load_timing_cache=caches["recorded"], change=no_jit),
        lambda: build("replay, one tactic of every layer", selector=strict(bench.replayer()), load_timing_cache=b""),
        lambda: build("replay, one timing iteration", selector=bench.replayer(), load_timing_cache=b"", change=one_iteration),
        lambda: build("replay, heuristics", selector=bench.replayer(), load_timing_cache=b"", change=flag("ENABLE_TACTIC_HEURISTIC")),
        lambda: build("replay, optimization level 1", selector=bench.replayer(), load_timing_cache=b"", builder_optimization_level=1),
        lambda: build("replay, no external tactic sources", selector=bench.replayer(), load_timing_cache=b"", change=no_external_sources),
        lambda: build("recorded again, its own cache", selector=TacticRecorder(TacticReplayData()), load_timing_cache=caches["recorded"]),
        lambda: build("recorded again, cache of the unwatched build", selector=TacticRecorder(TacticReplayData()), load_timing_cache=caches["build"]),
        lambda: build("replay, optimization level 0", selector=bench.replayer(), load_timing_cache=b"", builder_optimization_level=0),
    ]  # fmt: skip


ON_OTHERS = (
    "first",
    "build",
    "recorded",
    "replay, cache disabled",
    "replay, cache of the",
)


def measure(name: str, began: float, only: tuple[str, ...] = ()) -> Bench:
    """Build every variant of one network, as long as there is time."""
    bench = Bench(name, MODELS[name]())
    for variant in variants(bench):
        title = next(const for const in variant.__code__.co_consts if isinstance(const, str))
        if only and not title.startswith(only):
            continue
        if time.perf_counter() - began > LIMIT:
            print(f"left out for lack of time: {name}: {title}", flush=True)
            continue
        try:
            variant()
        except Exception as exc:  # an experiment: one variant that cannot be made costs no other
            print(f"not possible: {name}: {title}: {exc!r}"[:500], flush=True)
    return bench


def measure_eagerly(name: str) -> None:
    """Builds and replays in a process that loads all kernels when it starts, in place of each when it is first used."""
    environment = {**os.environ, "CUDA_MODULE_LOADING": "EAGER", "TRTOPS_BENCH_CHILD": "1"}
    print("with CUDA_MODULE_LOADING=EAGER:", flush=True)
    subprocess.run([sys.executable, __file__, name], env=environment, check=False, timeout=180)


def evaluate(bench: Bench) -> bool:
    """Whether the best replay that was followed is as fast as it is to be."""
    seconds = {row["variant"]: row["seconds"] for row in bench.rows if "failed" not in row}
    if "build" not in seconds:
        return False
    replays = {title: s for title, s in seconds.items() if title.startswith("replay")}
    print(f"\n{bench.name}: a build takes {seconds['build']:.2f} s")
    for title, s in sorted(replays.items(), key=lambda x: x[1]):
        print(f"  {seconds['build'] / s:6.1f} times faster, {s:7.2f} s: {title}")
    return bool(replays) and seconds["build"] / min(replays.values()) >= GOAL


def main() -> int:
    began = time.perf_counter()
    names = [name for name in sys.argv[1:] if name in MODELS] or ["small"]
    child = os.environ.get("TRTOPS_BENCH_CHILD") == "1"
    only = ("first", "build", "recorded", "replay, cache disabled", "replay, cache of the recorded") if child else ()
    benches = [measure(name, began, only if number == 0 else ON_OTHERS) for number, name in enumerate(names)]
    if "eager" in sys.argv[1:]:
        measure_eagerly(names[0])
    kept = [evaluate(bench) for bench in benches]
    print(f"goal: a replay {GOAL:g} times faster than a build: {'kept' if all(kept) else 'MISSED'}")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
