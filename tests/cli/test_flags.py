"""Every option of every command changes what the command does, in every spelling. Made from the option tables."""

import argparse
import functools
import inspect
import re
import shlex
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest

from tests import models
from trtops.cli import registry
from trtops.cli.command_line import load, parser_of, refuse_overwriting_files
from trtops.cli.commands.runs import limit, tag
from trtops.cli.flags import Flag, Parser, UsageError, flags_of, without_effect
from trtops.cli.logs import LOGGING
from trtops.cli.main import main
from trtops.cli.values import READERS, attribute, constraint, named, tensor, until
from trtops.comparator.table import METRICS
from trtops.errors import ConfigError
from trtops.json import save_json

_COMPARED = " ".join(metric.key for metric in METRICS if metric.limit is not None)
_SCRIPT = "--data-loader-script d.py"
LINES = {
    "run": f"--onnxrt --trt; --onnxrt --trt --compare indices {_COMPARED}; --onnxrt --trt-engine e.engine; m.bin "
    f"--onnxrt; --onnxrt --save-onnx s.onnx; --onnxrt --trt --check-error-stat mean; m.py --trt; "
    f"--onnxrt --trt --save-heatmaps h; --onnxrt {_SCRIPT}",
    "convert": "; --experiment e --trt; --experiment e --onnxrt; "
    "--experiment e --onnxrt --labels l.npy; -o o.onnx; m.bin -o m.engine; m.py;"
    f" --convert-to ort; --int8 {_SCRIPT}",
    "calibrate": f"--load-inputs d.json; ; {_SCRIPT}",
    "triage": "--experiment e; --experiment e --trt; --experiment e --onnxrt",
    "inspect model": "--display-as trt; ; m.engine; m.engine --show layers; m.bin --display-as trt; m.bin "
    "--shape-inference; m.py --display-as trt",
    "inspect diff-tactics": "--dir replays; --good g; --bad b; ",
    "inspect engines": "a.json b.json; a.engine b.engine --profile; ",
    "inspect capability": "; --with-partitioning",
    "inspect calibration": "c.cache; run:c",
    "inspect tactics": "t.json; run:c",
    "check accuracy": f"; --compare {_COMPARED}; --check-error-stat mean",
    "surgeon extract": f"; --force-fallback-shape-inference; --force-fallback-shape-inference {_SCRIPT}",
    "surgeon sanitize": f"; --force-fallback-shape-inference; --force-fallback-shape-inference {_SCRIPT}",
    "debug build": f"--until 3; --until 3 --check true; --until 3 --experiment e --onnxrt; "
    f"--until 3 --experiment e --onnxrt --labels l.npy; m.bin --until 3; m.py "
    f"--until 3; m.pb --until 3 --opset 11; m.ckpt --model-type ckpt --until 3; --until 3 --int8 {_SCRIPT}",
    "debug reduce": "; --check true; --min-good g.onnx",
    "debug precision": "; --check true; --bf16 --trt; --trt --int8; --trt --version-compatible",
    "debug repeat": "--until 3; --until 3 --check true; --until 3 --iter-artifact x.onnx",
    "template trt-network": "; m.pb -o n.py; m.py -o n.py; m.ckpt -o n.py --model-type ckpt",
    "template trt-config": f"; --int8 {_SCRIPT}",
    "runs evaluate": "--l2-threshold 7; ",
    "runs audit": "--experiment e; --accepted; --accepted --key k.pub",
}
"""Lines of commands, separated by ``;``, where an option changes one. Those that name no other model are added to the
arguments and options that are required."""

TOGGLES = (
    "--onnxrt",
    "--trt",
    "--int8",
    "--experiment e",
    "--shape-inference",
    "--version-compatible",
    "--labels l.npy",
    _SCRIPT,
)
"""Options that make others count; each that a command has is added to its first line."""

WITHOUT_CHANGE = {
    *(f"{command} --fp32" for command in ("run", "convert", "debug build")),  # the default, tested below
    "debug precision --model-type",  # only onnx is accepted
    "run --input-dtypes",  # for PyTorch modules only
    "run --torch",  # likewise
    *(f"plugin {subcommand} --model-type" for subcommand in ("list", "match", "replace")),
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
    limit: ["error/max_abs=0.01"],
    constraint: ["prefer"],
}  # fmt: skip


def commands() -> Iterator[tuple[str, registry.Path]]:
    """Commands, without further words for the same one, and store commands, which pass their words on."""
    for path in registry.COMMANDS:
        if path not in registry.OTHER_WORDS and path[0] != "store":
            yield " ".join(path), path
    yield "inspect diff", ("inspect", "diff")


def lines_of(command: str) -> list[str]:
    shortest = []
    for flag in flags_of_command(tuple(command.split())):
        value = str(flag.choices[0]) if flag.choices else "m.onnx" if "model" in flag.dest else "abc"
        if flag.positional and (flag.takes in ("one", "many") or flag.dest == "model_file"):
            shortest.append(value)
        elif flag.required:
            shortest += [flag.names[0], value]
    flag_names = {name for flag in flags_of_command(tuple(command.split())) for name in flag.names}
    first, *rest = (line.strip() for line in LINES.get(command, "").split(";"))
    lines = [first, *rest, *(f"{first} {toggle}".strip() for toggle in TOGGLES if toggle.split()[0] in flag_names)]
    return [line if line and not line.startswith("-") else " ".join([*shortest, line]).strip() for line in lines]


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
    limits = {"loss": ["1%"], "latency": ["2ms"]}
    if (field := flag.dest.rpartition(".")[2]) in limits:
        return limits[field]
    if flag.choices:
        return [next(str(word) for word in reversed(flag.choices) if str(word) != flag.usual)]
    if (flag.shown or "").startswith("N|"):
        return ["7"]
    if flag.convert is int and "most" in flag.bounds:
        return [str(flag.bounds["most"])]
    return SAMPLES.get(flag.convert, ["sample.py" if "FUNCTION" in (flag.shown or "") else "sample"])


@functools.cache
def parser_for(path: registry.Path) -> Parser:
    return parser_of(path, load(path))


def plan_of(path: registry.Path, words: list[str]) -> Any:
    """What the job of a line will do."""
    args = parser_for(path).parse(words)
    args.words = ["trtops"]
    return contents(load(path).plan(args))


def contents(value: Any) -> Any:
    """What a job will do, comparable: functions by their code and the values that they hold."""
    if inspect.isfunction(value):
        assert "args" not in value.__code__.co_freevars, "a job reads no options: they would count as unused"
        return value.__qualname__, contents(dict(inspect.getclosurevars(value).nonlocals))
    if isinstance(value, functools.partial):  # a command that uses all its options
        return vars(value.args[0])
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
    without_effect = [
        f"{command} {flag.names[0]}"
        for command, path in commands()
        for flag in flags_of_command(path)
        if not (flag.positional or flag.refuse or flag.idle)
        and not any(changes(path, flag, line) for line in lines_of(command))
    ]
    assert sorted(set(without_effect) - WITHOUT_CHANGE) == []


def test_every_example_parses():
    examples_by_command = {path: load(path).examples for path in registry.COMMANDS}
    shown = set()
    for example in (
        line for examples in examples_by_command.values() for line in examples if line.startswith("trtops")
    ):
        command, rest = registry.find(shlex.split(example.replace("\\\n", " "))[1:])
        parser_for(command).parse([w for w in rest if w != ">" and not w.startswith("~")])
        shown.add(command)
    assert {path for path, examples in examples_by_command.items() if examples} - shown == {
        ("data", "to-input")
    }  # now `data merge`


def test_every_command_has_the_log_options():
    words = {"--verbosity": ["INFO"], "--log-format": ["no-colors"], "--log-file": ["x.log"], "--timeout": ["60"]}
    for command, path in commands():
        base = lines_of(command)[0].split()
        for flag in LOGGING.flags[1:]:
            args = parser_for(path).parse([flag.names[0], *words.get(flag.names[0], []), "-v", *base])
            assert getattr(args, flag.dest)


def test_refused_and_idle_options_say_why(capsys):
    for command, path in commands():
        base = lines_of(command)[0].split()
        for flag in flags_of_command(path):
            if flag.refuse:
                assert main([*path, *base, flag.names[0]]) == 2
                assert flag.refuse.split(".")[0] in capsys.readouterr().err
            if flag.idle:
                words = [flag.names[0], *words_of(flag)]
                args = parser_for(path).parse([*base, *words])
                assert plan_of(path, [*base, *words]) == plan_of(path, base)
                expected = [f"{flag.names[0]} has no effect here: {flag.idle}"]
                assert without_effect(load(path).groups, args, words) == expected


def test_every_output_that_is_also_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs = 0
    for command, path in commands():
        base = lines_of(command)[0].split()
        flags = [flag for flag in (*flags_of_command(path), *LOGGING.flags) if flag.file and not flag.positional]
        positional = [flag for flag in flags_of_command(path) if flag.positional and flag.file == "reads"]
        args = parser_for(path).parse(base)
        for output in [flag for flag in flags if flag.file == "writes"]:
            for source in [flag for flag in (*flags, *positional) if flag.file == "reads"]:
                name = "same.py" if "FUNCTION" in (source.shown or "") else "same.onnx"
                (tmp_path / name).write_bytes(b"the user's file")
                (tmp_path / "link").unlink(missing_ok=True)
                (tmp_path / "link").hardlink_to(tmp_path / name)
                values = {source.dest: (name, "f") if name == "same.py" else name, output.dest: "link"}
                if source.takes == "runner":
                    values[source.dest] = ((source.value, name),)
                elif source.takes == "rest":
                    values[source.dest] = ["python", name]
                elif "@FILE" in (source.shown or ""):
                    values[source.dest] = ["relu", f"@{name}"]
                line = args.but(**{**dict.fromkeys(flag.dest for flag in (*flags, *positional)), **values})
                pairs += 1
                if source.dest in output.continues.split():
                    refuse_overwriting_files(load(path), line)
                    continue
                with pytest.raises(ConfigError, match=f"^{re.escape(output.names[0])} would overwrite 'link'"):
                    refuse_overwriting_files(load(path), line)
    assert pairs > 900


@pytest.mark.parametrize(
    "line",
    [
        "convert identity.onnx --convert-to ort -o ./identity.onnx",
        "convert identity.onnx --convert-to ort --log-file link.onnx",
        "run identity.onnx --onnxrt --load-inputs i.json --save-outputs i.json",
        "run identity.onnx --onnxrt --load-inputs folder --save-outputs folder/i.json",
        "surgeon sanitize identity.onnx -o identity.onnx",
        "convert identity.onnx --onnxrt --metric own.py:f relu -o own.py",
        "build-list i.json --log-file i.json",
        "run --trt-engine i.json --log-file i.json",
        "debug reduce identity.onnx -o own.py --check python own.py {model}",
        "surgeon sanitize large.onnx -o weights.bin",
        "surgeon prune small.onnx -o other.onnx --save-external-data small.onnx",
    ],
)
def test_refused_output_leaves_the_file(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("identity", "small"):
        models.identity().write(tmp_path, name)
    (tmp_path / "link.onnx").symlink_to("identity.onnx")
    weights = onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["w"], ["y"])], "g", [], [], [weights])
    graph.output.add().CopyFrom(onnx.helper.make_tensor_value_info("y", 1, (4, 4)))
    onnx.save(
        onnx.helper.make_model(graph),
        "large.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    (tmp_path / "own.py").write_text("def f(outputs, labels): ...\n")
    (tmp_path / "folder").mkdir()
    for path in ("i.json", "folder/i.json"):
        save_json([models.identity().feed], path)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert main(line.split()) == 2
    assert "would overwrite" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def wrong_words(flag: Flag) -> Iterator[str]:
    """Words that an option must refuse."""
    if flag.positional or flag.refuse or flag.idle or flag.takes in ("switch", "count", "rest", "runner"):
        return
    if flag.choices:
        yield "nope"
    elif flag.convert in (int, float):
        yield "word"
        if flag.bounds.get("least", 0) is not None:
            yield "-1"
        if flag.convert is float:
            yield "nan"
    elif flag.convert in READERS.values() and flag.convert not in (named, tensor):
        yield "[" if "DIMS" in (flag.shown or "") else "nope:nope"
    elif flag.file and flag.takes != "optional":
        yield ""


def test_wrong_words_name_the_option(capsys):
    lines = 0
    for command, path in commands():
        base = lines_of(command)[0].split()
        for flag in flags_of_command(path):
            for word in wrong_words(flag):
                lines += 1
                with pytest.raises(SystemExit) as ended:
                    parser_for(path).parse([f"{flag.names[0]}={word}", *base])
                printed = capsys.readouterr().err
                assert ended.value.code == 2 and flag.names[0] in printed, (command, flag.names, word)
    assert lines > 500


def test_words_are_utf_8(capsys):
    for line in ("run \udcff.onnx --onnxrt", "convert m.onnx --experiment=\udcfe"):
        assert main(line.split()) == 2
    printed = capsys.readouterr().err
    assert r"\udcff.onnx is not UTF-8 text" in printed and r"--experiment=\udcfe is not UTF-8 text" in printed


def test_fp32_contradicts_lower_precisions():
    for path in (("run",), ("convert",), ("debug", "build")):
        base = lines_of(" ".join(path))[0].split()
        assert plan_of(path, [*base, "--fp32"]) == plan_of(path, base)
        with pytest.raises(UsageError, match="exclude each other"):
            plan_of(path, [*base, "--fp32", "--fp16"])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run identity.onnx --onnxrt --memory-pool-limit workspace:1G --seed 3", "--memory-pool-limit"),
        ("run identity.onnx --onnxrt --load-inputs i.json --seed 3 --fp16", "--seed --fp16"),
        ("run identity.onnx --onnxrt --store s --calibration-cache c", "--store --calibration-cache"),
        (
            "run identity.onnx --onnxrt --atol 1e-3 --save-heatmaps m --trt-outputs y",
            "--atol --save-heatmaps --trt-outputs",
        ),
        ("debug reduce identity.onnx --fp16 --atol 1 --onnxrt --check true", "--fp16 --atol --onnxrt"),
        ("debug accuracy identity.onnx --emulate fp16 --int8 --atol 1", "--int8"),
        ("debug repeat --until 1 --fail-code 3 --check true --fp16", ""),
        ("run identity.onnx --onnxrt --sequential-runners", "--sequential-runners"),
        ("convert identity.onnx --seed 3 --refittable -o low.onnx", "--seed --refittable"),
        ("convert identity.onnx --convert-to ort --experiment m --timing-cache c", ""),
        ("template trt-config --fp16 --seed 3 -o c.py", "--seed"),
        ("surgeon sanitize identity.onnx --seed 3 -o s.onnx", "--seed"),
        ("run identity.onnx --onnxrt --seed 3 --iterations 2 --input-shapes x:[1,1,2,2] -v", ""),
    ],
)
def test_unused_options_warn_once(line, expected, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    models.identity().write(tmp_path)
    save_json([models.identity().feed], "i.json")

    assert main(line.split()) == 0
    warned = [r.getMessage().split()[0] for r in caplog.records if "has no effect here" in r.getMessage()]
    assert warned == expected.split()


def config_of(command: str, line: str) -> Any:
    """The config in the job of a line."""

    def configs(value: Any) -> Iterator[Any]:
        if type(value).__name__.endswith("Config"):
            yield value
        for held in value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ():
            yield from configs(held)

    return next(configs(plan_of(tuple(command.split()), line.split())))


def test_options_reach_the_config():
    build = config_of(
        "convert",
        "m.onnx --experiment e --layer-precisions a:fp16 --precision-constraints b:fp32 --use-dla --allow-gpu-fallback",
    ).build
    assert build.precision == "fp32"  # the back end allows what layers want
    assert build.options.layer_precisions == (("a", "float16"), ("b", "float32"))
    assert build.options.precision_constraints == "obey"
    assert build.options.use_dla and build.options.allow_gpu_fallback

    config = config_of("convert", "m.onnx --experiment e --min-precision-share 0.5 --no-keep-model --build-timeout 9")
    assert (config.check.min_precision_share, config.keep_model, config.timeout_seconds) == (0.5, False, 9.0)

    diff_config = config_of("inspect diff-tactics", "--good g --bad b")
    assert diff_config == config_of("debug diff-tactics", "g b") and (diff_config.good, diff_config.bad) == ("g", "b")
    assert config_of("inspect diff-tactics", "--runs r").runs == ("r",)
    assert config_of("inspect diff-tactics", "8d6e3f1a 1a2b3c4d").runs == ("8d6e3f1a", "1a2b3c4d")
    assert config_of("inspect diff-tactics", "--of-experiment e").experiment == "e"
    assert config_of("inspect diff-tactics", "--dir d").folder == "d"
    assert config_of("runs audit", "--experiment e").experiment == "e"


def test_help_shows_defaults():
    for path in registry.COMMANDS:
        shown = " ".join(parser_for(path).format_help().split())
        for flag in flags_of_command(path):
            assert not flag.usual or f"(default: {flag.usual})" in shown
            left_out = flag.positional or flag.required or flag.refuse or flag.idle
            valued = flag.takes not in ("switch", "count", "runner", "rest") and not left_out
            if valued and (flag.choices or flag.convert in (int, float)):
                assert flag.usual or flag.default or re.search("default|unless", flag.help), (path, flag.names)


def test_help_lists_only_options_that_ops_use():
    for path, used, unused in (
        ("compare", {"--self-check", "--power", "--latency-runs"}, {"--plots", "--golden", "--min-precision-share"}),
        ("gate", {"--self-check", "--golden"}, {"--plots", "--warm-up", "--latency-runs", "--min-precision-share"}),
        ("convert", {"--plots", "--warm-up", "--min-precision-share"}, set()),
    ):
        names = {name for flag in flags_of_command((path,)) for name in flag.names}
        assert used <= names and not unused & names, path


_LOADING_TENSORFLOW = {"--ckpt", "--tf-outputs", "--freeze-graph", "--opset"}
REFUSED = {
    "run": {
        "--tf", *_LOADING_TENSORFLOW, "--save-pb", "--save-tensorboard", "--save-timeline", "--tftrt", "--use-tftrt",
        "--minimum-segment-size", "--dynamic-op", "--gpu-memory-fraction", "--allow-growth", "--xla",
        "--lpips-threshold", "--lpips-tolerance",
    },
    "convert": _LOADING_TENSORFLOW,
    "inspect model": {"--ckpt", "--freeze-graph", "--visual", "--visual-port", "--save-visual"},
    "template trt-network": _LOADING_TENSORFLOW,
    "check accuracy": {
        "--compare-func-script", "--index-tolerance", "--save-heatmaps", "--show-heatmaps", "--save-error-metrics-plot",
        "--show-error-metrics-plot", "--lpips-threshold", "--lpips-tolerance",
    },
}  # fmt: skip
"""Options that end the command with what to use instead."""


def ours(path: registry.Path) -> dict[str, Flag]:
    """Options of a command by spelling."""
    return {name: flag for group in (*load(path).groups, LOGGING) for flag in group.flags for name in flag.names}


def theirs() -> Iterator[tuple[registry.Path, argparse.ArgumentParser]]:
    """Polygraphy's commands with their parsers."""
    from polygraphy.tools.registry import TOOL_REGISTRY

    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers()
    for tool in TOOL_REGISTRY:
        tool.setup_parser(commands)
    parsers: list[tuple[registry.Path, argparse.ArgumentParser]] = [((), parser)]
    for path, subparser in parsers:  # it grows
        below = [action for action in subparser._actions if isinstance(action, argparse._SubParsersAction)]
        parsers += [((*path, name), child) for action in below for name, child in action.choices.items()]
        if not below:
            yield path, subparser


ABBREVIATED = {
    "surgeon sanitize m.onnx --cleanup --fold-constant --toposort -o s.onnx": "--fold-constants",
    "surgeon sanitize --override-input-s x:[7,2] -o s.onnx m.onnx": "--override-input-shapes",
    "run m.onnx --onnxrt --input-shape x:[1,2] --save-outputs o.json": "--input-shapes",
    "run --onnxrt m.onnx --save-output=o.json --iterations 3": "--save-outputs",
    "run m.onnx --trt --trt-min-shape x:[1] --trt-max-shapes x:[2]": "--trt-min-shapes",
    "convert m.onnx --fp16 --memory-pool workspace:1G -o m.engine": "--memory-pool-limit",
    "inspect model m.onnx --show layers --display trt": "--display-as",
    "check lint m.onnx --input-shape x:[1,2]": "--input-shapes",
}
"""Command lines as in public scripts, and the options that are cut short in them."""


@pytest.mark.parametrize("line", ABBREVIATED)
def test_abbreviated_options_mean_polygraphys(line):
    path, words = registry.find(line.split())
    full_name = ABBREVIATED[line]
    short_name = next(w.partition("=")[0] for w in words if w[:8] == full_name[:8])
    full_words = [word.replace(short_name, full_name) for word in words]
    assert vars(parser_for(path).parse(words)) == vars(parser_for(path).parse(full_words))


def test_options_leave_the_model_behind_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.onnx").touch()
    for line, option, value in (
        ("--onnxrt --precision-constraints obey m.onnx", "precision_constraints", [("", "obey")]),
        ("--precision-constraints conv:fp16 fc:fp16 --onnxrt m.onnx", "precision_constraints",
         [("conv", "float16"), ("fc", "float16")]),
        ("--onnxrt --save-input-blob m.onnx", "save_input_blob", "."),
        ("--save-input-blob blobs m.onnx --onnxrt", "save_input_blob", "blobs"),
        ("m.onnx --onnxrt --save-input-blob", "save_input_blob", "."),
    ):  # fmt: skip
        args = parser_for(("run",)).parse(line.split())
        assert (args.model_file, getattr(args, option)) == ("m.onnx", value)


def test_abbreviations_are_unique_and_logged(tmp_path, monkeypatch, caplog, capsys):
    monkeypatch.chdir(tmp_path)
    models.identity().write(tmp_path)
    assert main(["run", "identity.onnx", "--onnxrt", "--iter", "2", "--see=3", "--sav", "x"]) == 2
    assert "--sav is ambiguous: it could be --save-" in capsys.readouterr().err
    assert (
        main(["debug", "reduce", "identity.onnx", "-o", "x.onnx", "--min-goo", "x", "--check", "true"]) == 2
    )  # Polygraphy: no such option

    caplog.clear()
    assert main(["run", "identity.onnx", "--onnxrt", "--iter", "2", "--see=3", "--fp1"]) == 0
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert "--fp16 has no effect here" in warnings[0] and len(warnings) == 2
    assert "--iter is taken for --iterations, --see=3 is taken for --seed=3, --fp1 is taken for --fp16" in warnings[1]


@pytest.mark.parity
def test_every_polygraphy_option_is_known():
    unknown, refused, count = [], {}, 0
    for path, parser in theirs():
        if path in registry.NOT_SUPPORTED:
            continue
        our_options = ours(path)
        command = " ".join(path)
        for spelling in (name for action in parser._actions for name in action.option_strings):
            count += 1
            if spelling not in our_options:
                unknown.append(f"{command} {spelling}")
            elif our_options[spelling].refuse:
                refused.setdefault(command, set()).add(spelling)

    abbreviable = {
        path: sorted(name for action in parser._actions for name in action.option_strings if name.startswith("--"))
        for path, parser in theirs()
        if parser.allow_abbrev and path not in registry.NOT_SUPPORTED
    }
    assert {path: parser_for(path).abbreviable() for path in abbreviable} == abbreviable
    assert not any(parser_for(path).abbreviable() for path in {*registry.COMMANDS} - {*abbreviable})
    assert count > 1200
    assert not unknown
    assert refused == REFUSED
    assert {path for path, _ in theirs()} <= {*registry.COMMANDS, *registry.NOT_SUPPORTED}
