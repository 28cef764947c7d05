"""Each command that a result proposes is run as it is printed. `-s` prints them with their exit codes."""

import ast
import os
import re
import shlex
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import trtops
from tests import campaigns, models
from tests.long_runs import LONG
from trtops.backend.onnxrt.search import Search
from trtops.cli import registry
from trtops.cli.logs import with_lists_in_files
from trtops.cli.main import find_command, main
from trtops.comparator.report import OutputTolerances, Tolerances
from trtops.next_step import NextStep, arguments_of
from trtops.ops.engines.convert import ConvertConfig
from trtops.ops.evaluation.check import CheckConfig
from trtops.spec import BuildConfig, TensorRTOptions

TIGHT = "--atol 1e-12 --rtol 0"


class Scenario(NamedTuple):
    """A command, and the verbs that its chain of next steps begins with; ``long`` ones take seconds of CPU."""

    line: str
    verbs: tuple[str, ...] = ()
    long: bool = False


SCENARIOS = {
    "convert": Scenario("convert net.onnx --onnxrt", ("convert", "runs promote", "inspect run")),
    "convert to a store": Scenario("convert net.onnx --onnxrt --store other --experiment a", ("runs promote",)),
    "convert with options": Scenario(
        "convert net.onnx --onnxrt --latency-runs 0 --seed 3 --iterations 3 --min-precision-share 0 --timing-seconds 1 "
        "--providers cpu --plots never --no-deny-list --power --self-check",
        ("convert", "runs promote"),
    ),
    "convert with shapes": Scenario(
        "convert free.onnx --onnxrt --latency-runs 0 --input-shapes image:[2,3,8,8]", ("convert", "runs promote")
    ),
    "convert with profiles": Scenario(
        "convert free.onnx --onnxrt --latency-runs 0 --trt-min-shapes image:[1,3,8,8] --trt-opt-shapes image:[2,3,8,8] "
        "--trt-max-shapes image:[4,3,8,8]",
        ("convert", "runs promote"),
    ),
    "convert without shapes": Scenario("convert free.onnx --onnxrt --latency-runs 0 --experiment a"),
    "convert to fp16": Scenario("convert net.onnx --onnxrt --fp16 --load-inputs net.npz", ("convert", "runs promote")),
    "convert to int8": Scenario("convert net.onnx --onnxrt --int8 --load-inputs net.npz --experiment int8"),
    "convert to int8 without data": Scenario("convert net.onnx --onnxrt --int8 --experiment a"),
    "convert a large engine": Scenario(
        "convert net.onnx --onnxrt --max-engine-bytes 1 --experiment a", ("inspect run",)
    ),
    "convert inexactly": Scenario(
        "convert free.onnx --onnxrt --int8 --keep conv0 --load-inputs net.npz --atol 1e-12 scores:1e-11 --experiment a",
        ("triage",),
        long=True,
    ),
    "convert an overflow": Scenario(
        "convert over.onnx --onnxrt --fp16 --no-measure-ranges --load-inputs over.npz --experiment over",
        ("debug accuracy", "debug precision", "convert"),
    ),
    "calibrate": Scenario("calibrate net.onnx --load-inputs net.npz --experiment a", ("inspect run",)),
    "calibrate inexactly": Scenario(
        f"calibrate net.onnx --load-inputs net.npz --experiment a {TIGHT}",
        ("sensitivity",),
    ),
    "measure layers": Scenario("sensitivity net.onnx --calibration-cache net.cache --load-inputs net.npz --budget 1"),
    "gate": Scenario("gate net.onnx --onnxrt --experiment a --minutes 1 --policy lax.yaml", ("inspect run",), True),
    "gate inexactly": Scenario(
        "gate net.onnx --onnxrt --experiment a --minutes 1 --policy strict.yaml --no-register",
        ("debug accuracy",),
        True,
    ),
    "campaign of good builds": Scenario(
        "debug build net.onnx --onnxrt --until 2 --latency-runs 0 --experiment a", ("inspect run",)
    ),
    "campaign of bad builds": Scenario(
        f"debug build net.onnx --onnxrt --until 2 --latency-runs 0 {TIGHT} --no-bisect --experiment bad "
        "--load-inputs net.npz",
    ),
    "campaign with a culprit": Scenario(
        "debug build blocks.onnx --onnxrt --allow-approximation --random-tactics --load-inputs feed.npz "
        "--latency-runs 0 --atol 1e-4 --rtol 1e-4 --experiment campaign",
        ("debug prove", "runs promote"),
        True,
    ),
    "campaign that is too short": Scenario(
        "debug build blocks.onnx --onnxrt --allow-approximation --random-tactics --until 4 --load-inputs feed.npz "
        "--no-bisect --latency-runs 0 --atol 1e-4 --rtol 1e-4 --experiment campaign",
        ("debug bisect", "runs promote"),
        True,
    ),
    "reduce": Scenario(f"debug reduce over.onnx --onnxrt --experiment a {TIGHT}", ()),
    "accuracy": Scenario("debug accuracy over.onnx --emulate fp16 --load-inputs over.npz", ("debug precision",)),
    "accuracy of an engine": Scenario(f"debug accuracy net.onnx --onnxrt {TIGHT} --experiment a"),
    "precision": Scenario(
        "debug precision over.onnx --fp16 -o 'mixed twice.onnx' --load-inputs over.npz --experiment a", ("convert",)
    ),
    "triage": Scenario("triage free.onnx --onnxrt --experiment a", ("inspect run",), True),
    "compare": Scenario("compare net.onnx net.onnx --experiment a"),
    "list": Scenario("build-list models.yaml --experiment a"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, data and policies."""
    folder = tmp_path_factory.mktemp("next")
    models.conv_net().write(folder, "free")
    models.conv_net().fixed().write(folder, "net")
    over = models.three_convolutions(1, 8, 6, (0.3, 5e3, 2e-5), "over")  # in FP16, the second overflows
    over.write(folder)
    np.savez(folder / "net.npz", **models.conv_net().feed)
    np.savez(folder / "over.npz", **over.feed)
    campaigns.two_blocks(folder)
    (folder / "models.yaml").write_text("models:\n- model: net.onnx\n  precisions: [fp32]\n", encoding="utf-8")
    (folder / "lax.yaml").write_text("latency: null\n", encoding="utf-8")
    (folder / "strict.yaml").write_text("latency: null\naccuracy: {tolerances: {atol: 0, rtol: 0}}\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("TRTOPS_HOME", str(folder / "store"))
        assert main(["calibrate", "net.onnx", "--load-inputs", "net.npz", "-o", "net.cache"]) in (
            0,
            1,
        )
        assert main(["convert", "net.onnx", "--onnxrt", "-o", "net.ort", "--latency-runs", "0"]) == 0
    return folder


@pytest.mark.parametrize("scenario", [pytest.param(steps, id=name) for name, steps in SCENARIOS.items()])
def test_next_steps_run_as_printed(
    scenario: Scenario, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if scenario.long and not LONG:
        pytest.skip("TRTOPS_TEST_LONG=1 runs it")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TRTOPS_HOME", str(folder / "store"))
    # Whether INT8 pays for models of this size is chance.
    monkeypatch.setattr(Search, "gain_over_fp32", lambda *_: "0.50 times the time of FP32")
    words, verbs, report = shlex.split(scenario.line), [], []
    while words:
        code = main(words)
        printed, log = capsys.readouterr()
        report.append(f"{code}  trtops {shlex.join(words)}")
        assert code in (0, 1, 4), f"{report}\n{printed}\n{log}"
        words = next_words(printed)
        assert "--no-keep-model" not in words  # a run that lasts only as long as its command keeps none
        if words:
            verbs.append(" ".join(find_command(words)[0]))
            if len(verbs) == (4 if LONG else max(1, len(scenario.verbs))):
                words = []
    with capsys.disabled():
        print("\n".join(report))
    assert tuple(verbs[: len(scenario.verbs)]) == scenario.verbs, report


def test_long_lists_go_to_files(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(folder)
    names = ("conv0", "bn0", "relu0", "conv1", "relu1", "pool", "flatten")
    step = NextStep("convert", {"model": "net.onnx", "backend": "onnxruntime", "precision": "int8", "data": "net.npz"})
    line = str(with_lists_in_files(replace(step, arguments={**step.arguments, "keep": names})))
    [file] = folder.glob("net.keep-*.txt")

    assert line == f"trtops convert net.onnx --onnxrt --int8 --load-inputs net.npz --keep @{file.name}"
    assert tuple(file.read_text().splitlines()) == names
    assert main([*shlex.split(line)[1:], "-v"]) == 0 and "1 layers read 8 bits" in capsys.readouterr().out
    assert with_lists_in_files(replace(step, arguments={"keep": names[:6]})).arguments["keep"] == names[:6]
    assert main(["convert", "net.onnx", "--onnxrt", "--int8", "--keep", "@absent.txt"]) == 2
    assert "@absent.txt: expected @ and a file" in capsys.readouterr().err


def test_options_of_configs_are_spelled() -> None:
    tolerances = Tolerances(atol=1e-3, per_output={"y": OutputTolerances(rtol=0.5)})
    options = TensorRTOptions(
        also=("fp16",), workspace_bytes=1 << 20, layer_precisions=(("a b", "float32"),), precision_constraints="obey"
    )
    build = BuildConfig(precision="int8", keep=("-x",), options=options)
    config = ConvertConfig(build=build, check=CheckConfig(data="load.py:feeds", tolerances=tolerances), replay="r.json")
    arguments = arguments_of(config)

    assert str(NextStep("convert", {"model": "-m.onnx", **arguments, "precision": "int8"})) == (
        "trtops convert ./-m.onnx --int8 --keep=-x --trt --fp16 --precision-constraints obey --workspace 1048576 "
        "--layer-precisions 'a b:float32' --data-loader-script load.py:feeds --atol 0.001 --rtol y:0.5 "
        "--load-tactics r.json"
    )
    triage = NextStep.after(arguments, "triage", {"model": "m.onnx"})
    assert set(arguments) - set(triage.arguments) == set()
    emulated = NextStep.after(arguments, "debug accuracy", {"model": "m.onnx", "emulate": "fp16"})
    assert set(emulated.arguments) == {"model", "emulate", "data", "tolerances"}


HOSTILE_NAMES = (
    "$(touch PWNED)", "`touch PWNED`", "${IFS}touch${IFS}PWNED", "; touch PWNED", "& touch PWNED &", "| touch PWNED",
    "\ntouch PWNED\n", "a\r\ntouch PWNED", "|| touch PWNED", "> PWNED", "< PWNED", ">>PWNED", "<(touch PWNED)",
    "'; touch PWNED; '", '"; touch PWNED; "', "'", '"', "\\", "\\\\'", "a'b", 'a"b', "a'\n'b", "$'x'", '$"x"', "a b",
    " a", "a ", "\ta", "  ", "*", "?", "[a-z]*", "{a,b}", "~", "~root", "!!", "!touch", "#x", "a #x", "=ls", "%1",
    "^a^b", "$HOME", "$?", "$$", "x=1", "(a)", "a;", "\x1b[2J\x07", "\u202eevil", "\u200b", "é ü", "日本",
    "\udcff\udcfe", "--fp16", "-o", "@x", "a\\\nb", "a\u2028touch PWNED",
)  # fmt: skip


def test_pasted_names_do_nothing_but_name(tmp_path: Path) -> None:
    """The lines of steps with hostile names, pasted into bash, give the command the words that were meant."""
    stub = "trtops() { printf '%s\\0' \"$@\" END; }\n"
    steps = [
        NextStep("convert", {"model": f"{name}.onnx", "keep": (name,), "data": f"{name}.npz", "experiment": name})
        for name in HOSTILE_NAMES
    ]
    for pasted in ("\n".join(map(str, steps)), "\n".join("\n".join(step.lines(71)) for step in steps)):
        assert len(pasted.splitlines()) < 8 * len(steps) and pasted.isprintable() is False  # of newlines only
        assert not {character for character in pasted if not character.isprintable()} - {"\n"}
        done = subprocess.run(["bash", "--norc"], input=os.fsencode(stub + pasted), cwd=tmp_path, capture_output=True)
        words = [word.decode("utf-8", "surrogateescape") for word in done.stdout.split(b"\0")[:-1]]

        assert not done.stderr and not [*tmp_path.iterdir()], done.stderr
        assert words == [word for step in steps for word in [*step.words()[1:], "END"]]


def test_only_one_module_spells_commands() -> None:
    """Others mention commands that exist, without arguments of their own."""
    mentioned = set()
    for path in Path(trtops.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                for part, after in pairwise(node.values):
                    text = (
                        part.value if isinstance(part, ast.Constant) and isinstance(after, ast.FormattedValue) else ""
                    )
                    spelled = re.search(r"\btrtops ([a-z -]+) $", text)
                    assert not spelled or not registry.find(spelled[1].split())[0], f"{path}: {text}"
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                mentioned |= {(words, path) for words in re.findall(r"`trtops ([^`{<]+)", node.value)}
    assert len(mentioned) > 30
    for words, path in mentioned:
        assert registry.find(words.split())[0], f"{path}: trtops {words}"


def next_words(printed: str) -> list[str]:
    """The words of the line that a command proposes; empty if it proposes none."""
    lines = re.findall(r"^next:((?:.*\\\n)*.*)", printed, re.MULTILINE)
    assert len(lines) <= 1, printed
    words = shlex.split(lines[0].replace("\\\n", "")) if lines else []
    assert words[:1] in ([], ["trtops"]), words
    return words[1:]
