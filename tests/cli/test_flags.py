"""Every option of every command reaches what the command does: argv in, another plan out. Made from the tables themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests import models
from trtops.cli import groups, registry
from trtops.cli.choosing import tag
from trtops.cli.flags import Flag, UsageError, without_effect
from trtops.cli.logs import LOGGING
from trtops.cli.main import load, main, parser_of
from trtops.cli.values import (
    attribute,
    budget,
    constraint,
    layer_type,
    named,
    named_number,
    named_whole,
    number,
    pool_limit,
    shape,
    size,
    statistic,
    tensor,
    top_k,
    until,
    value_range,
)
from trtops.comparator.table import METRICS
from trtops.errors import ConfigError
from trtops.json import save_json

BASE: dict[registry.Path, list[str]] = {
    ("run",): ["m.onnx", "--onnxrt", "--trt"],
    ("convert",): ["m.onnx", "-o", "m.engine"],
    ("calibrate",): ["m.onnx", "--load-inputs", "d.json", "--trt"],
    ("compare",): ["a.json", "b.json"],
    ("gate",): ["m.onnx", "--trt"],
    ("triage",): ["m.onnx", "--experiment", "e", "--trt"],
    ("sensitivity",): ["m.onnx", "--calibration-cache", "c.cache"],
    ("inspect", "model"): ["m.onnx", "--display-as", "trt"],
    ("inspect", "data"): ["d.json"],
    ("inspect", "diff"): ["a.json", "b.json"],
    ("inspect", "tactics"): ["r.json"],
    ("inspect", "diff-tactics"): ["--dir", "replays"],
    ("inspect", "engines"): ["a.json", "b.json"],
    ("inspect", "capability"): ["m.onnx", "--with-partitioning"],
    ("inspect", "sparsity"): ["m.onnx"],
    ("inspect", "calibration"): ["c.cache"],
    ("inspect", "run"): ["abc"],
    ("check", "lint"): ["m.onnx"],
    ("check", "accuracy"): ["acc.json"],
    ("check", "compatibility"): ["m.onnx"],
    ("surgeon", "extract"): ["m.onnx", "-o", "o.onnx"],
    ("surgeon", "sanitize"): ["m.onnx", "-o", "o.onnx"],
    ("surgeon", "insert"): ["m.onnx", "-o", "o.onnx", "--op", "Relu", "--inputs", "a", "--outputs", "b"],
    ("surgeon", "prune"): ["m.onnx", "-o", "o.onnx"],
    ("surgeon", "weight-strip"): ["m.onnx", "-o", "o.onnx"],
    ("surgeon", "weight-reconstruct"): ["m.onnx", "-o", "o.onnx"],
    ("debug", "build"): ["m.onnx", "--until", "3"],
    ("debug", "diff-tactics"): ["--dir", "replays"],
    ("debug", "bisect"): ["abc"],
    ("debug", "prove"): ["abc"],
    ("debug", "noise"): ["abc"],
    ("debug", "reduce"): ["m.onnx"],
    ("debug", "precision"): ["m.onnx"],
    ("debug", "accuracy"): ["m.onnx", "--trt"],
    ("debug", "repeat"): ["--until", "3"],
    ("data", "merge"): ["a.json", "b.json", "-o", "o.json"],
    ("data", "to-input"): ["a.json", "b.json", "-o", "o.json"],
    ("data", "concat"): ["a.json", "b.json", "-o", "o.json"],
    ("template", "trt-network"): ["m.onnx", "-o", "n.py"],
    ("template", "trt-config"): ["-o", "c.py"],
    ("template", "onnx-gs"): ["m.onnx", "-o", "g.py"],
    ("template", "data-loader"): ["m.onnx", "-o", "d.py"],
    ("plugin", "list"): ["m.onnx", "--plugin-dir", "p"],
    ("plugin", "match"): ["m.onnx", "--plugin-dir", "p"],
    ("plugin", "replace"): ["m.onnx", "--plugin-dir", "p"],
    ("build-list",): ["models.yaml"],
    ("team", "up"): [],
    ("team", "down"): [],
    ("team", "status"): [],
    ("team", "env"): [],
    ("team", "password"): ["mlflow"],
    ("report",): ["abc"],
    ("runs", "list"): [],
    ("runs", "show"): ["abc"],
    ("runs", "compare"): ["abc", "def"],
    ("runs", "evaluate"): ["abc", "--l2-threshold", "7"],
    ("runs", "audit"): ["--experiment", "e"],
    ("runs", "prune"): [],
    ("runs", "bundle"): ["abc"],
    ("runs", "promote"): ["abc"],
    ("runs", "resolve"): ["m.onnx"],
    ("runs", "deny"): ["abc"],
    ("runs", "close"): ["abc"],
    ("runs", "pardon"): ["abc", "--why", "mended"],
    ("store", "reap"): [],
    ("store", "ui"): [],
    ("store", "check"): [],
    ("store", "upload"): [],
    ("doctor",): [],
    ("completion",): ["bash"],
}
"""A short line of each command, which the option under test is added to."""

CAMPAIGN = ["m.onnx", "--until", "3", "--experiment", "e"]
WITH: dict[str, list[str]] = {
    "--no-onnxruntime-shape-inference": ["--shape-inference"],
    "--data-loader-func-name": ["--data-loader-script", "d.py"],
    "--calibration-cache": ["--int8"],
    "--calib-base-cls": ["--int8"],
    "--quantile": ["--int8"],
    "--regression-cutoff": ["--int8"],
    "--check-average": ["--check-error-stat", "mean"],
    "--index-tolerance": ["--compare", "indices"],
    **{f"--{m.option.replace('_', '-')}": ["--compare", m.function] for m in METRICS if m.limit is not None},
    "--ckpt": ["--model-type", "ckpt"],
    "--tf-outputs": ["--model-type", "frozen"],
    "--opset": ["--model-type", "keras"],
    "--trt-network-func": ["--model-type", "trt-network-script"],
    "--save-external-data": ["--save-onnx", "s.onnx"],
    "--external-data-size-threshold": ["--save-onnx", "s.onnx"],
    "--no-save-all-tensors-to-one-file": ["--save-onnx", "s.onnx"],
    "--load-runtime": ["--trt-engine", "e.engine"],
    "--dla-workspace-allocation-strategy": ["--trt-engine", "e.engine"],
    "--fail-code": ["--check", "true"],
    "--ignore-fail-code": ["--check", "true"],
    "--fail-regex": ["--check", "true"],
    "--check-timeout": ["--check", "true"],
    "--iter-artifact": ["--check", "true"],
    "--show-output": ["--check", "true"],
}
"""What an option needs beside it to mean something."""

OWN: dict[tuple[registry.Path, str], list[str] | None] = {
    (("inspect", "model"), "--load-runtime"): ["m.engine"],
    (("inspect", "model"), "--dla-workspace-allocation-strategy"): ["m.engine"],
    (("inspect", "model"), "--plugins"): ["m.onnx", "--display-as", "trt"],
    (("inspect", "model"), "--shape-inference"): ["m.onnx"],
    (("inspect", "model"), "--list-unbounded-dds"): ["m.onnx"],
    (("inspect", "model"), "--convert-to"): ["m.onnx"],
    (("inspect", "capability"), "--with-partitioning"): ["m.onnx"],
    (("run",), "--model-type"): ["m.bin", "--onnxrt"],
    (("convert",), "--model-type"): ["m.bin", "-o", "m.engine"],
    (("inspect", "model"), "--model-type"): ["m.bin", "--display-as", "trt"],
    (("debug", "build"), "--model-type"): ["m.bin", "--until", "3"],
    (("run",), "--tf"): ["m.keras", "--trt"],
    (("run",), "--trt-network-func"): ["m.py", "--trt"],
    (("calibrate",), "--trt"): ["m.onnx", "--load-inputs", "d.json"],
    (("calibrate",), "--allow-approximation"): ["m.onnx", "--load-inputs", "d.json"],
    (("calibrate",), "--timing-seconds"): ["m.onnx", "--load-inputs", "d.json"],
    (("calibrate",), "--data-loader-script"): ["m.onnx"],
    (("calibrate",), "--data-loader-func-name"): ["m.onnx", "--data-loader-script", "d.py"],
    (("debug", "precision"), "--model-type"): None,  # refused but for onnx
    (("surgeon", "extract"), "--data-loader-func-name"): [
        *BASE["surgeon", "extract"],
        "--force-fallback-shape-inference",
        "--data-loader-script",
        "d.py",
    ],
    (("debug", "accuracy"), "--data-loader-func-name"): ["m.onnx", "--data-loader-script", "d.py"],
    (("debug", "reduce"), "--data-loader-func-name"): ["m.onnx", "--data-loader-script", "d.py"],
    (("template", "trt-config"), "--data-loader-func-name"): ["-o", "c.py", "--int8", "--data-loader-script", "d.py"],
    (("check", "compatibility"), "--trt"): ["m.onnx", "--onnxrt"],
    (("debug", "build"), "--trt"): ["m.onnx", "--until", "3", "--experiment", "e", "--onnxrt"],
    (("debug", "build"), "--allow-approximation"): ["m.onnx", "--until", "3", "--onnxrt"],
    (("debug", "build"), "--timing-seconds"): ["m.onnx", "--until", "3", "--onnxrt"],
    (("debug", "accuracy"), "--trt"): ["m.onnx", "--onnxrt"],
    (("debug", "accuracy"), "--allow-approximation"): ["m.onnx", "--onnxrt"],
    (("debug", "accuracy"), "--timing-seconds"): ["m.onnx", "--onnxrt"],
    (("triage",), "--timing-seconds"): ["m.onnx", "--onnxrt"],
    (("debug", "reduce"), "--trt"): ["m.onnx", "--onnxrt"],
    (("triage",), "--trt"): ["m.onnx"],
    (("convert",), "--config"): None,  # reads the file: tests/triage/by_hand.py uses it
    (("triage",), "--allow-approximation"): ["m.onnx"],
    (("triage",), "--data-loader-func-name"): ["m.onnx", "--trt", "--data-loader-script", "d.py"],
    (("debug", "reduce"), "--allow-approximation"): ["m.onnx", "--onnxrt"],
    (("debug", "reduce"), "--timing-seconds"): ["m.onnx", "--onnxrt"],
    (("runs", "resolve"), "--onnxrt"): ["m.onnx", "--trt"],
    (("debug", "reduce"), "--l2-threshold"): ["m.onnx"],
    **{
        ((*path,), "--store"): [*words, "--experiment", "e"]
        for path, words in {
            ("run",): ["m.onnx", "--onnxrt"],
            ("debug", "reduce"): ["m.onnx"],
            ("debug", "precision"): ["m.onnx"],
            ("debug", "accuracy"): ["m.onnx"],
        }.items()
    },
    (("run",), "--fp32"): None,  # tested below, with the other commands'
    (("convert",), "--fp32"): None,
    (("debug", "build"), "--fp32"): None,
    (("inspect", "model"), "--ckpt"): ["m.bin", "--shape-inference"],
    (("inspect", "model"), "--tf-outputs"): ["m.pb", "--shape-inference"],
    (("inspect", "model"), "--opset"): ["m.pb", "--shape-inference"],
    (("inspect", "model"), "--combine-tensor-info"): ["m.engine", "--show", "layers"],
    (("inspect", "model"), "--visual-port"): ["m.onnx", "--visual"],
    **{(("plugin", each), "--model-type"): None for each in ("list", "match", "replace")},  # refused but for onnx
    (("inspect", "diff-tactics"), "--dir"): None,
    (("inspect", "diff-tactics"), "--good"): None,  # tested with --bad below
    (("inspect", "diff-tactics"), "--bad"): None,
    (("inspect", "diff-tactics"), "--runs"): None,
    (("inspect", "diff-tactics"), "--of-experiment"): None,
    (("debug", "diff-tactics"), "--dir"): None,
    (("debug", "diff-tactics"), "--good"): None,
    (("debug", "diff-tactics"), "--bad"): None,
    (("debug", "diff-tactics"), "--runs"): None,
    (("debug", "diff-tactics"), "--of-experiment"): None,
    (("runs", "evaluate"), "--policy"): ["abc"],
    (("gate",), "--trt"): ["m.onnx"],
    (("gate",), "--allow-approximation"): ["m.onnx"],
    (("gate",), "--timing-seconds"): ["m.onnx"],
    **{(("runs", "evaluate"), name): ["--policy", "p.yaml"] for name in ("--experiment", "--tag", "--accepted", "-n")},
    (("runs", "audit"), "--experiment"): ["--accepted"],
    (("convert",), "--rebuild"): ["m.onnx", "--experiment", "e"],
    (("convert",), "--rtol"): ["m.onnx", "--experiment", "e"],
    (("convert",), "--atol"): ["m.onnx", "--experiment", "e"],
    (("convert",), "--min-precision-share"): ["m.onnx", "--experiment", "e"],
    (("inspect", "engines"), "--layer-times"): None,  # takes two: tested with the command
    (("inspect", "engines"), "--load-inputs"): ["a.engine", "b.engine", "--profile"],
    (("convert",), "--attribute-error"): ["m.onnx", "--experiment", "e"],
    (("convert",), "--store"): ["m.onnx", "--experiment", "e"],
    (("convert",), "--save-external-data"): ["m.onnx", "-o", "o.onnx"],
    (("convert",), "--external-data-size-threshold"): ["m.onnx", "-o", "o.onnx"],
    (("convert",), "--no-save-all-tensors-to-one-file"): ["m.onnx", "-o", "o.onnx"],
    (("debug", "build"), "--load-tactics"): BASE["debug", "build"],
    (("debug", "reduce"), "--artifacts"): [*BASE["debug", "reduce"]],
    (("debug", "reduce"), "--no-remove-intermediate"): [*BASE["debug", "reduce"]],
    (("sensitivity",), "--calibration-cache"): ["m.onnx"],
    (("debug", "build"), "--resume"): CAMPAIGN,
    (("debug", "build"), "--min-precision-share"): CAMPAIGN,
    (("debug", "build"), "--allow-scripts"): CAMPAIGN,
}
"""Lines of their own for options that do not go with the usual one; None where two go together."""

DATA_OPTIONS = (
    "--seed", "--val-range", "--int-min", "--int-max", "--float-min", "--float-max", "--iterations",
    "--data-loader-backend-module", "--load-inputs", "--data-loader-script", "--data-loader-func-name",
)  # fmt: skip
CONVERT_ONLY_INT8 = [*BASE["convert",], "--int8"]
EVALUATED = tuple(flag.names[0] for flag in groups.STATISTICS.flags)

SAMPLES: dict[Any, list[str]] = {
    size: ["2K"],
    number: ["3"],
    shape: ["x:[2,3]"],
    named: ["conv:[linear]"],
    layer_type: ["conv:fp16"],
    named_number: ["0.25"],
    named_whole: ["3"],
    statistic: ["max"],
    value_range: ["[-1,2]"],
    pool_limit: ["workspace:1M"],
    budget: ["1G"],
    top_k: ["top-3"],
    attribute: ["axis=2"],
    tag: ["release=007"],
    tensor: ["t:[1,2]:float32"],
    until: ["7"],
    constraint: ["prefer"],
    int: ["5"],
    float: ["0.5"],
}


def words_of(flag: Flag) -> list[str]:
    """Words that follow an option."""
    if flag.takes in ("switch", "count") or (flag.takes == "runner" and not flag.shown):
        return []
    if flag.takes == "rest":
        return ["true"]
    if flag.dest == "model_type":
        return ["onnx"]
    if flag.dest == "kind":
        return ["reduce"]
    if flag.dest == "iter_artifact":
        return ["sample.onnx"]
    if flag.dest == "output":
        return ["other.engine"]
    if flag.dest == "zip":
        return ["other.zip"]
    if flag.choices:
        return [str(flag.choices[-1])]
    if flag.convert in SAMPLES:
        return SAMPLES[flag.convert]
    return ["sample.py" if "FUNCTION" in (flag.shown or "") else "sample"]


def cases() -> Iterator[Any]:
    for path in registry.COMMANDS:
        for group in load(path).GROUPS:
            for flag in group.flags:
                if (
                    not flag.positional
                    and not flag.refuse
                    and not flag.idle
                    and OWN.get((path, flag.names[0]), "") is not None
                ):
                    yield pytest.param(path, flag, id=f"{' '.join(path)} {flag.names[0]}")


def line_for(path: registry.Path, flag: Flag) -> list[str]:
    name = flag.names[0]
    known = {n for group in load(path).GROUPS for f in group.flags for n in f.names}
    base = OWN.get((path, name)) or BASE[path]
    if path[0] == "surgeon" and name in DATA_OPTIONS:
        base = [*BASE[path], "--force-fallback-shape-inference"]
    if path == ("debug", "precision") and (path, name) not in OWN:
        base = _precision_line(name)
    if path == ("convert",) and name in DATA_OPTIONS:
        base = CONVERT_ONLY_INT8
    if path == ("debug", "build") and name in DATA_OPTIONS:
        base = [*BASE[path], "--int8"]
    if path == ("debug", "build") and name in (
        *EVALUATED,
        "--random-tactics",
        "--vary-tactics",
        "--parallel",
        "--build-timeout",
        "--max-builds",
        "--max-minutes",
        "--clean-builds",
        "--no-bisect",
        "--store",
    ):
        base = CAMPAIGN
    if path in (("debug", "accuracy"), ("calibrate",)) or (base is CAMPAIGN and name not in WITH):
        extra: list[str] = []
    else:
        extra = WITH.get(name, [])
    if path in (("check", "accuracy"), ("run",)) and name in WITH:
        extra = WITH[name]
    return [*base, *(word for word in extra if not extra or extra[0] in known)]


CHECKED = {flag.names[0] for group in (groups.CHECK, groups.SORTING, groups.ITERATING) for flag in group.flags}


def _precision_line(name: str) -> list[str]:
    """An engine's options need an engine, and those of commands a command."""
    if name == "--trt" or name in DATA_OPTIONS or name in EVALUATED:
        return ["m.onnx"]
    if name in CHECKED:
        return ["m.onnx", *([] if name == "--check" else ["--check", "true"])]
    return ["m.onnx", "--bf16", "--trt"] if name in ("--fp16", "--precision") else ["m.onnx", "--trt"]


def plan_of(path: registry.Path, words: list[str]) -> object:
    module = load(path)
    args = parser_of(path, module).parse(words)
    args.words = ["trtops"]
    return module.plan(args)


@pytest.mark.parametrize(("path", "flag"), list(cases()))
def test_an_option_changes_what_the_command_is_going_to_do_in_every_spelling(path, flag):
    base = line_for(path, flag)
    ahead = base.index("--check") if "--check" in base and flag.names[0] != "--check" else len(base)
    try:
        before = plan_of(path, base)
    except (SystemExit, UsageError, ConfigError):
        before = None  # the option, or one of its kind, is needed

    after = [plan_of(path, [*base[:ahead], name, *words_of(flag), *base[ahead:]]) for name in flag.names]

    assert after[0] != before
    assert all(other == after[0] for other in after)


def test_every_command_has_a_line_here_and_an_example_that_parses():
    import shlex

    assert set(BASE) == set(registry.COMMANDS)
    for path in registry.COMMANDS:
        module = load(path)
        for example in module.EXAMPLES:
            if not example.startswith("trtops"):
                continue
            words = shlex.split(example.replace("\\\n", " "))[1:]
            found, rest = registry.find(words)
            parser_of(found, load(found)).parse([w for w in rest if w != ">" and not w.startswith("~")])


@pytest.mark.parametrize("name", [name for flag in LOGGING.flags for name in flag.names if name.startswith("--")])
def test_options_of_the_log_are_known_to_every_command(name):
    flag = next(flag for flag in LOGGING.flags if name in flag.names)
    words = {"--verbosity": ["INFO"], "--log-format": ["no-colors"], "--log-file": ["x.log"]}.get(name, [])
    if name == "--help":
        return
    for path, base in BASE.items():
        args = parser_of(path, load(path)).parse(
            [*base[: base.index("--check") if "--check" in base else None], name, *words]
        )
        assert getattr(args, flag.dest)


@pytest.mark.parametrize(
    ("path", "flag"),
    [
        pytest.param(path, flag, id=f"{' '.join(path)} {flag.names[0]}")
        for path in registry.COMMANDS
        for group in load(path).GROUPS
        for flag in group.flags
        if flag.refuse
    ],
)
def test_an_option_that_is_not_carried_out_is_refused_with_what_to_use_instead(path, flag, capsys):
    assert main([*path, *BASE[path], flag.names[0]]) == 2
    assert flag.refuse.split(".")[0] in capsys.readouterr().err


@pytest.mark.parametrize("path", [("run",), ("convert",), ("debug", "build")], ids=" ".join)
def test_fp32_contradicts_lower_precisions(path):
    assert plan_of(path, [*BASE[path], "--fp32"]) == plan_of(path, BASE[path])
    with pytest.raises(UsageError, match="exclude each other"):
        plan_of(path, [*BASE[path], "--fp32", "--fp16"])


@pytest.mark.parametrize(
    ("path", "flag"),
    [
        pytest.param(path, flag, id=f"{' '.join(path)} {flag.names[0]}")
        for path in registry.COMMANDS
        for group in load(path).GROUPS
        for flag in group.flags
        if flag.idle
    ],
)
def test_an_option_of_which_nothing_comes_is_accepted_with_a_warning_that_says_why(path, flag):
    words = [flag.names[0], *words_of(flag)]
    base = BASE[path] if path != ("debug", "repeat") else ["--until", "1"]
    module = load(path)
    args = parser_of(path, module).parse([*base, *words])

    assert plan_of(path, [*base, *words]) == plan_of(path, base)
    assert without_effect(module.GROUPS, args, words) == [f"{flag.names[0]} has no effect here: {flag.idle}"]


@pytest.mark.parametrize(
    ("line", "told"),
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
def test_an_option_that_nothing_on_the_line_uses_is_told_of_in_one_line(line, told, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    models.identity().write(tmp_path)
    save_json([models.identity().feed], "i.json")

    assert main(line.split()) == 0
    warned = [r.getMessage() for r in caplog.records if "has no effect here" in r.getMessage()]
    assert [text.split()[0] for text in warned] == told


def test_a_remembered_build_has_the_precisions_of_its_layers():
    line = ["m.onnx", "--experiment", "e", "--layer-precisions", "a:fp16", "--precision-constraints", "b:fp32"]
    build = plan_of(("convert",), line).config.build

    assert build.precision == "fp32"  # the back end lets the builder use what layers want
    assert build.options.layer_precisions == (("a", "float16"), ("b", "float32"))
    assert build.options.precision_constraints == "obey"
    dla = plan_of(
        ("convert",), ["m.onnx", "--experiment", "e", "--use-dla", "--allow-gpu-fallback"]
    ).config.build.options
    assert dla.use_dla and dla.allow_gpu_fallback


def test_good_and_bad_records_of_diff_tactics_go_together():
    both = plan_of(("inspect", "diff-tactics"), ["--good", "g", "--bad", "b"])

    assert both == plan_of(("debug", "diff-tactics"), ["g", "b"])
    assert both.config.good == "g" and both.config.bad == "b"
    assert plan_of(("inspect", "diff-tactics"), ["--runs", "r"]).config.runs == ("r",)
    assert plan_of(("inspect", "diff-tactics"), ["--of-experiment", "e"]).config.experiment == "e"
    assert plan_of(("inspect", "diff-tactics"), ["--dir", "d"]).config.folder == "d"
    assert plan_of(("runs", "audit"), ["--experiment", "e"]).config.experiment == "e"
