"""Every option of every command changes what the command does, in every spelling. Made from the option tables."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from tests import models
from trtops.cli import registry
from trtops.cli.commands.runs import tag
from trtops.cli.flags import Flag, Parser, UsageError, flags_of, without_effect
from trtops.cli.logs import LOGGING
from trtops.cli.main import load, main, parser_of
from trtops.cli.script import Unresolved
from trtops.cli.values import READERS, attribute, constraint, tensor, until
from trtops.comparator.table import METRICS
from trtops.errors import ConfigError
from trtops.json import save_json

_COMPARED = " ".join(metric.function for metric in METRICS if metric.limit is not None)
LINES = {
    "run": (
        "m.onnx --onnxrt --trt; m.onnx --trt --version-compatible; m.onnx --onnxrt --trt --int8; m.onnx --onnxrt "
        "--trt --compare indices {compared}; m.onnx --onnxrt --trt --shape-inference; m.onnx --data-loader-script "
        "d.py --onnxrt; m.onnx --onnxrt --trt-engine e.engine; m.bin --onnxrt; m.onnx --onnxrt --save-onnx s.onnx; "
        "m.onnx --onnxrt --trt --check-error-stat mean; m.keras --trt; m.py --trt; m.onnx --onnxrt --experiment e; "
        "m.pb --onnxrt --opset 11; m.ckpt --model-type ckpt --onnxrt; m.onnx --onnxrt --trt --save-heatmaps h"
    ),
    "convert": (
        "m.onnx -o m.engine; m.onnx --version-compatible; m.onnx --int8; m.onnx --int8 --data-loader-script d.py; "
        "m.onnx --experiment e; m.onnx --experiment e --trt; m.onnx --experiment e --onnxrt; m.onnx -o o.onnx; m.onnx "
        "--shape-inference; m.bin -o m.engine; m.pb --opset 11; m.ckpt --model-type ckpt; m.py; m.onnx --convert-to "
        "ort"
    ),
    "calibrate": (
        "m.onnx --load-inputs d.json --trt; m.onnx --load-inputs d.json; m.onnx; m.onnx --data-loader-script d.py"
    ),
    "compare": "a.json b.json; a.json b.json --data-loader-script d.py",
    "gate": "m.onnx --trt; m.onnx; m.onnx --data-loader-script d.py",
    "triage": (
        "m.onnx --experiment e; m.onnx --experiment e --trt; m.onnx --experiment e --onnxrt; m.onnx --trt "
        "--data-loader-script d.py"
    ),
    "sensitivity": "m.onnx --calibration-cache c.cache; m.onnx; m.onnx --calibration-cache c --data-loader-script d.py",
    "inspect model": (
        "m.onnx --display-as trt; m.onnx; m.engine; m.engine --show layers; m.onnx --visual; m.bin --display-as trt; "
        "m.bin --shape-inference; m.pb --shape-inference; m.py --display-as trt; m.ckpt --model-type ckpt; m.onnx "
        "--shape-inference"
    ),
    "inspect data": "d.json",
    "inspect diff": "a.json b.json; a.json b.json --data-loader-script d.py",
    "inspect tactics": "r.json",
    "inspect diff-tactics": "--dir replays; --good g; --bad b; ",
    "inspect engines": "a.json b.json; a.engine b.engine --profile; a b",
    "inspect capability": "m.onnx --with-partitioning; m.onnx; m.onnx --shape-inference",
    "inspect sparsity": "m.onnx",
    "inspect calibration": "c.cache; run:c",
    "inspect run": "abc",
    "check lint": "m.onnx; m.onnx --data-loader-script d.py",
    "check compatibility": "m.onnx; m.onnx --onnxrt",
    "check accuracy": "acc.json; acc.json --compare {compared}; acc.json --check-error-stat mean",
    "surgeon extract": (
        "m.onnx -o o.onnx; m.onnx -o o.onnx --shape-inference; m.onnx -o o.onnx --force-fallback-shape-inference; "
        "m.onnx --force-fallback-shape-inference --data-loader-script d.py"
    ),
    "surgeon sanitize": (
        "m.onnx -o o.onnx; m.onnx -o o.onnx --shape-inference; m.onnx -o o.onnx --force-fallback-shape-inference; "
        "m.onnx -o o.onnx --force-fallback-shape-inference --data-loader-script d.py"
    ),
    "surgeon insert": (
        "m.onnx -o o.onnx --op Relu --inputs a --outputs b; m.onnx -o o.onnx --shape-inference --op Relu --inputs a "
        "--outputs b"
    ),
    "surgeon prune": "m.onnx -o o.onnx",
    "surgeon weight-strip": "m.onnx -o o.onnx",
    "surgeon weight-reconstruct": "m.onnx -o o.onnx",
    "debug build": (
        "m.onnx --until 3; m.onnx --until 3 --version-compatible; m.onnx --until 3 --int8; m.onnx --until 3 --check "
        "true; m.onnx --until 3 --experiment e; m.bin --until 3; m.onnx --until 3 --experiment e --onnxrt; m.onnx "
        "--until 3 --shape-inference; m.py --until 3; m.pb --until 3 --opset 11; m.ckpt --model-type ckpt --until 3; "
        "m.onnx --until 3 --int8 --data-loader-script d.py"
    ),
    "debug bisect": "abc",
    "debug prove": "abc",
    "debug reduce": (
        "m.onnx; m.onnx --check true; m.onnx --onnxrt; m.onnx --experiment e; m.onnx --data-loader-script d.py; "
        "m.onnx --min-good g.onnx"
    ),
    "debug precision": (
        "m.onnx; m.onnx --trt --version-compatible; m.onnx --trt; m.onnx --check true; m.onnx --bf16 --trt; m.onnx "
        "--trt --int8; m.onnx --experiment e; m.onnx --data-loader-script d.py; m.onnx --shape-inference"
    ),
    "debug accuracy": "m.onnx --trt; m.onnx --onnxrt; m.onnx --experiment e; m.onnx --data-loader-script d.py",
    "debug repeat": "--until 3; --until 3 --check true; --until 3 --iter-artifact x.onnx",
    "data merge": "a.json b.json -o o.json",
    "data concat": "a.json b.json -o o.json",
    "template trt-network": (
        "m.onnx -o n.py; m.pb -o n.py; m.py -o n.py; m.ckpt -o n.py --model-type ckpt; m.onnx -o n.py --shape-inference"
    ),
    "template trt-config": (
        "-o c.py; -o c.py --version-compatible; -o c.py --int8; -o c.py --int8 --data-loader-script d.py"
    ),
    "template onnx-gs": "m.onnx -o g.py; m.onnx -o g.py --shape-inference",
    "plugin list": "m.onnx --plugin-dir p; m.onnx --plugin-dir p --shape-inference",
    "plugin match": "m.onnx --plugin-dir p; m.onnx --plugin-dir p --shape-inference",
    "plugin replace": "m.onnx --plugin-dir p; m.onnx --plugin-dir p --shape-inference",
    "build-list": "models.yaml",
    "team up": "",
    "team down": "",
    "team status": "",
    "team env": "",
    "team password": "mlflow",
    "report": "abc",
    "runs list": "",
    "runs show": "abc",
    "runs compare": "abc def",
    "runs evaluate": "abc --l2-threshold 7; abc",
    "runs audit": "--experiment e; --accepted",
    "runs prune": "",
    "runs bundle": "abc",
    "runs promote": "abc",
    "runs resolve": "m.onnx; m.onnx --trt",
    "runs deny": "abc",
    "runs close": "abc",
    "runs pardon": "abc --why mended",
    "doctor": "",
    "completion": "bash",
}
"""Lines of each command, separated by ``;``, where an option changes one. Other tests use the first."""

WITHOUT_CHANGE = {
    *(f"{command} --fp32" for command in ("run", "convert", "debug build")),  # the default, tested below
    "debug precision --model-type",  # only onnx is accepted
    *(f"plugin {each} --model-type" for each in ("list", "match", "replace")),
}

SAMPLES: dict[Any, list[str]] = {
    **{READERS[word]: [sample] for word, sample in {
        "N": "7", "X": "0.5", "SIZE": "2K", "SIZE|PERCENT%": "1G", "POOL:SIZE": "workspace:1M",
        "NAME:[DIMS]": "x:[2,3]", "[LO,HI]": "[-1,2]", "[OUTPUT:]X": "0.25", "[OUTPUT:]N": "3",
        "[OUTPUT:]STAT": "max", "[OUTPUT:]top-K": "top-3", "LAYER:TYPE": "conv:fp16",
        "TENSOR:FORMAT": "conv:[linear]", "OPTIMIZATION": "basic",
    }.items()},
    attribute: ["axis=2"],
    tag: ["release=007"],
    tensor: ["t:[1,2]:float32"],
    until: ["7"],
    constraint: ["prefer"],
}  # fmt: skip


def commands() -> Iterator[tuple[str, registry.Path]]:
    """Commands, without further words for the same one, and store commands, which pass their words on."""
    for path in registry.COMMANDS:
        if path not in registry.OTHER_WORDS and path[0] != "store":
            yield " ".join(path), path
    yield "inspect diff", ("inspect", "diff")


def lines_of(command: str) -> list[str]:
    return [line.strip() for line in LINES[command].format(compared=_COMPARED).split(";")]


def flags_of_command(path: registry.Path) -> list[Flag]:
    return [flag for _, flag in flags_of(load(path).groups)]


def words_of(flag: Flag) -> list[str]:
    """Words that follow an option."""
    if flag.takes in ("switch", "count") or (flag.takes == "runner" and not flag.shown):
        return []
    if flag.takes == "rest":
        return ["true"]
    named = {"model_type": "onnx", "kind": "reduce", "iter_artifact": "sample.onnx", "output": "other.engine"}
    named |= {"BundleConfig.output": "other.zip", "database": "postgresql://trtops@db"}
    if flag.dest in named:
        return [named[flag.dest]]
    if flag.choices:
        return [next(str(word) for word in reversed(flag.choices) if str(word) != flag.usual)]
    if (flag.shown or "").startswith("N|"):
        return ["7"]
    return SAMPLES.get(flag.convert, ["sample.py" if "FUNCTION" in (flag.shown or "") else "sample"])


_parsers: dict[registry.Path, Parser] = {}


def plan_of(path: registry.Path, words: list[str]) -> Any:
    """The job of a line; None if it is refused."""
    module = load(path)
    parser = _parsers.setdefault(path, parser_of(path, module))
    args = parser.parse(words)
    args.words = ["trtops"]
    return contents(module.plan(args))


def contents(value: Any) -> Any:
    """What a job will do, comparable: functions by their code and the values that they hold."""
    if inspect.isfunction(value):
        assert "args" not in value.__code__.co_freevars, "a job reads no options: they would count as unused"
        return value.__qualname__, {
            name: contents(held) for name, held in inspect.getclosurevars(value).nonlocals.items()
        }
    if isinstance(value, Unresolved):
        return contents(value.value)
    if isinstance(value, dict):
        return {name: contents(held) for name, held in value.items()}
    return [contents(held) for held in value] if isinstance(value, (list, tuple)) else value


def job_or_none(path: registry.Path, words: list[str]) -> Any:
    try:
        return plan_of(path, words)
    except (SystemExit, UsageError, ConfigError):
        return None


def changes(path: registry.Path, flag: Flag, line: str) -> bool:
    """Whether an option changes the job of a line, in every spelling alike."""
    words = line.split()
    ahead = words.index("--check") if "--check" in words and flag.dest != "check" else len(words)
    before = job_or_none(path, words)
    after = [job_or_none(path, [*words[:ahead], name, *words_of(flag), *words[ahead:]]) for name in flag.names]
    return after[0] is not None and after[0] != before and all(other == after[0] for other in after)


def test_every_option_changes_the_job(capsys):
    found = [
        f"{command} {flag.names[0]}"
        for command, path in commands()
        for flag in flags_of_command(path)
        if not (flag.positional or flag.refuse or flag.idle)
        and not any(changes(path, flag, line) for line in lines_of(command))
    ]
    assert sorted(set(found) - WITHOUT_CHANGE) == []


def test_every_example_parses():
    for path in registry.COMMANDS:
        for example in load(path).examples:
            if example.startswith("trtops"):
                words = shlex.split(example.replace("\\\n", " "))[1:]
                found, rest = registry.find(words)
                parser_of(found, load(found)).parse([w for w in rest if w != ">" and not w.startswith("~")])


def test_every_command_has_the_log_options():
    words = {"--verbosity": ["INFO"], "--log-format": ["no-colors"], "--log-file": ["x.log"]}
    for command, path in commands():
        base = lines_of(command)[0].split()
        for flag in LOGGING.flags[1:]:
            args = parser_of(path, load(path)).parse([flag.names[0], *words.get(flag.names[0], []), "-v", *base])
            assert getattr(args, flag.dest)


def test_refused_options_exit_with_a_hint(capsys):
    for command, path in commands():
        for flag in flags_of_command(path):
            if flag.refuse:
                assert main([*path, *lines_of(command)[0].split(), flag.names[0]]) == 2
                assert flag.refuse.split(".")[0] in capsys.readouterr().err


def test_options_without_effect_warn():
    for command, path in commands():
        base = lines_of(command)[0].split()
        for flag in flags_of_command(path):
            if flag.idle:
                words = [flag.names[0], *words_of(flag)]
                args = parser_of(path, load(path)).parse([*base, *words])
                assert plan_of(path, [*base, *words]) == plan_of(path, base)
                expected = [f"{flag.names[0]} has no effect here: {flag.idle}"]
                assert without_effect(load(path).groups, args, words) == expected


@pytest.mark.parametrize("command", ["run", "convert", "debug build"])
def test_fp32_contradicts_lower_precisions(command):
    path, base = tuple(command.split()), lines_of(command)[0].split()
    assert plan_of(path, [*base, "--fp32"]) == plan_of(path, base)
    with pytest.raises(UsageError, match="exclude each other"):
        plan_of(path, [*base, "--fp32", "--fp16"])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run identity.onnx --onnxrt --fp16", ["--fp16"]),
        ("run identity.onnx --onnxrt --memory-pool-limit workspace:1G --seed 3", ["--memory-pool-limit"]),
        ("run identity.onnx --onnxrt --load-inputs i.json --seed 3", ["--seed"]),
        ("run identity.onnx --onnxrt --store s --calibration-cache c", ["--store", "--calibration-cache"]),
        ("run identity.onnx --onnxrt --atol 1e-3 --save-heatmaps maps", ["--atol", "--save-heatmaps"]),
        (
            "run identity.onnx --onnxrt --save-engine e.engine --optimization-profile 1 --trt-outputs y",
            ["--save-engine", "--optimization-profile", "--trt-outputs"],
        ),
        ("debug reduce identity.onnx --fp16 --atol 1 --onnxrt --check true", ["--fp16", "--atol", "--onnxrt"]),
        ("debug accuracy identity.onnx --emulate fp16 --int8 --atol 1", ["--int8"]),
        ("debug repeat --until 1 --fail-code 3 --check true --fp16", []),
        ("run identity.onnx --onnxrt --sequential-runners", ["--sequential-runners"]),
        ("convert identity.onnx --seed 3 --fp16 -o low.onnx", ["--seed", "--fp16"]),
        ("template trt-config --fp16 --seed 3 -o c.py", ["--seed"]),
        ("surgeon sanitize identity.onnx --seed 3 -o s.onnx", ["--seed"]),
        ("run identity.onnx --onnxrt --seed 3 --iterations 2 --input-shapes x:[1,1,2,2] -v", []),
    ],
)
def test_unused_options_warn_once(line, expected, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    models.identity().write(tmp_path)
    save_json([models.identity().feed], "i.json")

    assert main(line.split()) == 0
    warned = [r.getMessage() for r in caplog.records if "has no effect here" in r.getMessage()]
    assert [text.split()[0] for text in warned] == expected


def config_of(command: str, line: str) -> Any:
    """The config in the job of a line."""

    def configs(value: Any) -> Iterator[Any]:
        if type(value).__name__.endswith("Config"):
            yield value
        for held in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
            yield from configs(held)

    return next(configs(plan_of(tuple(command.split()), line.split())))


def test_recorded_builds_have_layer_precisions():
    line = (
        "m.onnx --experiment e --layer-precisions a:fp16 --precision-constraints b:fp32 --use-dla --allow-gpu-fallback"
    )
    build = config_of("convert", line).build

    assert build.precision == "fp32"  # the back end allows what layers want
    assert build.options.layer_precisions == (("a", "float16"), ("b", "float32"))
    assert build.options.precision_constraints == "obey"
    assert build.options.use_dla and build.options.allow_gpu_fallback


def test_diff_tactics_takes_good_and_bad_records():
    both = config_of("inspect diff-tactics", "--good g --bad b")

    assert both == config_of("debug diff-tactics", "g b")
    assert both.good == "g" and both.bad == "b"
    assert config_of("inspect diff-tactics", "--runs r").runs == ("r",)
    assert config_of("inspect diff-tactics", "--of-experiment e").experiment == "e"
    assert config_of("inspect diff-tactics", "--dir d").folder == "d"
    assert config_of("runs audit", "--experiment e").experiment == "e"


def test_options_of_a_config_reach_it():
    config = config_of(
        "convert",
        "m.onnx --experiment e --min-precision-share 0.5 --no-keep-model --latency-runs 3 --isolated "
        "--build-timeout 9 --plots never --data d.json --max-engine-bytes 4096",
    )

    assert (config.check.min_precision_share, config.check.latency_runs, config.check.plots) == (0.5, 3, "never")
    assert (config.keep_model, config.isolated, config.timeout_seconds) == (False, True, 9.0)
    assert (config.check.data, config.max_engine_bytes) == ("d.json", 4096)
