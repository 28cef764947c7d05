"""Real modules of torch: both stages of the verdict, and what exports lose. `make test-torch` runs them."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import trtops
from tests.torch import modules
from tests.torch.modules import Case
from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.backend.torch.export import Example, export
from trtops.backend.torch.module import TorchModel
from trtops.ops.evaluation.export_check import ExportCheck, check_export


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def checked(case: Case, opset: int | None = None) -> ExportCheck:
    torch.manual_seed(0)
    exported = export(TorchModel.open(case.make()), Example(case.inputs, case.dynamic), opset)
    model = Model.load(exported.path)
    assert opset in (None, model.info.opset)
    return check_export(exported, model, [case.inputs])


@pytest.mark.parametrize("name", modules.RIGHT)
def test_right_export_is_good(name: str) -> None:
    case = modules.RIGHT[name]
    check = checked(case)
    assert check.verdict == "good", check.reasons
    assert len(check.other_sizes) == (2 if case.dynamic else 0)


@pytest.mark.parametrize("name", modules.LOST)
def test_loss_is_named(name: str) -> None:
    case = modules.LOST[name]
    check = checked(case)
    assert check.verdict == "bad"
    assert [loss.kind for loss in check.losses] == [case.kind], check.reasons
    [loss] = check.losses
    assert loss.place and case.place in loss.text, loss


class Chunks(torch.nn.Module):
    """Parts of unequal sizes, padding, and a norm over two axes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second, third = torch.nn.functional.pad(x, (1, 0, 0, 2)).chunk(3, dim=2)
        return first * second + third.amax((1, 2), keepdim=True)


class Bits(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x & 3


OLD = {name: modules.RIGHT[name] for name in ("residual", "vit", "detector", "decoder", "rotary")}
OLD["chunks"] = Case(Chunks, {"x": modules.floats(2, 3, 7)})


@pytest.mark.parametrize("name", OLD)
def test_right_export_is_good_in_an_old_operator_set(name: str) -> None:
    """TensorRT 8.6 reads 17; PyTorch's own conversion fails for each of these."""
    assert checked(OLD[name], 17).verdict == "good"


def test_operator_without_an_older_form_is_named() -> None:
    with pytest.raises(errors.InvalidModelError, match=r"BitwiseAnd.* needs an operator set newer than 17"):
        checked(Case(Bits, {"x": modules.ids(2, 3)}), 17)


def program(module: torch.nn.Module, path: Path, *arrays: np.ndarray[Any, Any]) -> Path:
    torch.export.save(torch.export.export(module, tuple(map(torch.from_numpy, arrays))), path)
    return path


def test_program_left_in_training_mode_is_named(tmp_path: Path) -> None:
    path = program(modules.Norm().train(), tmp_path / "norm.pt2", modules.floats(4, 6))
    check = checked(Case(lambda: path, {"x": modules.floats(4, 6)}))
    assert [(loss.kind, loss.place) for loss in check.losses] == [("training", "module 'norm'")]


def test_program_with_fixed_sizes_is_named(tmp_path: Path) -> None:
    path = program(modules.Norm().eval(), tmp_path / "norm.pt2", modules.floats(4, 6))
    check = checked(Case(lambda: path, {"x": modules.floats(4, 6)}, {"x": (0,)}))
    assert [(loss.kind, loss.place) for loss in check.losses] == [("constant", "x[0]")]


def test_damaged_program_is_refused_in_a_sentence(tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd) -> None:
    path = program(modules.Norm().eval(), tmp_path / "norm.pt2", modules.floats(4, 6))
    path.write_bytes(path.read_bytes().replace(b"norm/data/", b"\0orm/data/"))
    caplog.clear()
    with pytest.raises(errors.InvalidModelError, match=r"norm\.pt2 is not a program of torch\.export: [^\n]*$"):
        TorchModel.open(path)
    assert not caplog.records and "Traceback" not in capfd.readouterr().err


def test_right_program_is_good(tmp_path: Path) -> None:
    path = program(modules.ResidualNet().eval(), tmp_path / "net.pt2", modules.floats(2, 3, 16, 16))
    assert checked(Case(lambda: path, modules.IMAGE)).verdict == "good"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def make(:", "make.py:make returns no module: SyntaxError: .*line 1"),
        ("def make(size): pass", "returns no module: TypeError: .*'size'"),
        ("import sys\n\ndef make(): sys.exit('no weights')", "returns no module at make.py:3: SystemExit: no weights"),
        ("def make(): return 7", "make.py:make returns a builtins.int; expected a torch.nn.Module"),
        ("import torch\n\nmake = torch.nn.Linear(3, 4, device='meta')", "cannot be copied to the CPU in FP32"),
    ],
)
def test_fault_of_a_script_is_a_sentence(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("make.py").write_text(text)
    with pytest.raises(errors.ConfigError, match=message):
        TorchModel.open("make.py:make")


def test_unfit_inputs_are_named_with_the_line() -> None:
    with pytest.raises(
        errors.InferenceError, match=r"does not run on x float32 \[4, 5\] at modules.py:\d+: .*4x5 and 6x6"
    ):
        checked(Case(modules.Norm, {"x": modules.floats(4, 5)}))


def test_module_of_the_caller_is_not_changed() -> None:
    normed = torch.nn.utils.weight_norm(torch.nn.Linear(6, 6))  # its weight is computed, which no copy takes as it is
    module = torch.nn.Sequential(normed, torch.nn.BatchNorm1d(6)).half().train()
    opened = TorchModel.open(module)
    assert module.training and {tensor.dtype for tensor in module.parameters()} == {torch.float16}
    assert not opened.module.training and {tensor.dtype for tensor in opened.module.parameters()} == {torch.float32}


@pytest.fixture
def exchanging(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exporter that gives inputs the names of others."""
    original = torch.onnx.export

    def exchange(*args: Any, input_names: list[str], **options: Any) -> Any:
        return original(*args, input_names=input_names[::-1], **options)

    monkeypatch.setattr(torch.onnx, "export", exchange)


@pytest.mark.usefixtures("exchanging")
def test_exchanged_inputs_are_named() -> None:
    inputs = {"x": modules.floats(2, 5), "y": modules.floats(2, 5, seed=1)}
    [loss] = checked(Case(modules.TwoInputs, inputs)).losses
    assert loss.kind == "input" and loss.text == "inputs 'x' and 'y' are exchanged"


def faulty(monkeypatch: pytest.MonkeyPatch, change: Callable[[onnx.ModelProto], None]) -> None:
    """Let the exporter change what it exports."""
    original = torch.onnx.ONNXProgram.save

    def save(self: Any, path: str, **options: Any) -> None:
        original(self, path, **options)
        proto = onnx.load(path)
        change(proto)
        onnx.save(proto, path)

    monkeypatch.setattr(torch.onnx.ONNXProgram, "save", save)


def test_wrong_translation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(proto: onnx.ModelProto) -> None:
        node = next(node for node in proto.graph.node if node.op_type == "LayerNormalization")
        next(entry for entry in node.attribute if entry.name == "epsilon").f = 0.5

    faulty(monkeypatch, change)
    [loss] = checked(modules.RIGHT["vit"]).losses
    assert loss.kind == "values" and loss.place == "module 'norm' (LayerNorm)", loss


def test_dropped_input_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(proto: onnx.ModelProto) -> None:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(modules.floats(2, 5, seed=1), "y"))
        del proto.graph.input[1]

    faulty(monkeypatch, change)
    inputs = {"x": modules.floats(2, 5), "y": modules.floats(2, 5, seed=1)}
    [loss] = checked(Case(modules.TwoInputs, inputs)).losses
    assert (loss.kind, loss.place) == ("input", "y") and "missing" in loss.text


def test_both_stages_are_in_the_verdict(tmp_path: Path) -> None:
    script = tmp_path / "nets.py"
    script.write_text(Path(modules.__file__).read_text() + "\ndef make():\n    return ResidualNet()\n")
    # Tensors go to the child process of the build as arrays.
    data = {"x": torch.from_numpy(modules.floats(4, 3, 16, 16)).requires_grad_()}
    config = trtops.ConvertConfig(check=trtops.CheckConfig(data=data))

    result = trtops.convert(f"{script}:make", config, tracker=trtops.MemoryTracker())

    assert result.verdict == "good" and result.subject == f"{script}:make"
    assert result.evaluation.export is not None and result.evaluation.export.verdict == "good"
    assert "PyTorch to ONNX: good" in result.evidence and "ONNX to engine: " in result.evidence


def test_engine_of_a_module_is_exported_for_triton(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tracker = trtops.MemoryTracker()
    data = [{"x": modules.floats(rows, 3, 16, 16)} for rows in (2, 5)]
    check = trtops.CheckConfig(data=data, self_check=True, latency_runs=0)
    built = trtops.convert(modules.ResidualNet(), trtops.ConvertConfig(check=check), tracker=tracker)

    exported = trtops.export(built.run_id, tracker=tracker, triton=str(tmp_path), name="net", max_batch=8)

    config = (tmp_path / "net" / "config.pbtxt").read_text()
    assert (exported.exported, exported.max_batch, exported.because) == ("good", 8, ())
    assert 'name: "x"' in config and "dims: [ 3, 16, 16 ]" in config and "dims: [ 5 ]" in config


def test_triage_asks_about_the_export_first() -> None:
    torch.manual_seed(0)
    config = trtops.TriageConfig(check=trtops.CheckConfig(data={"x": modules.floats(4, 6, 6)}))
    result = trtops.triage(modules.Average(), config)
    assert [step.question for step in result.steps] == ["export"]
    assert result.kind == "export" and result.places == ("mean",)


def test_accuracy_takes_a_module() -> None:
    config = trtops.AccuracyConfig(data={"x": modules.floats(4, 6)})
    assert trtops.accuracy(modules.Mixture(), trtops.ops.search.accuracy.Emulated("bf16"), config).verdict == "good"


def test_export_is_kept_by_content() -> None:
    torch.manual_seed(0)
    module, example = modules.Norm(), Example({"x": modules.floats(4, 6)})
    first = export(TorchModel.open(module), example)
    assert export(TorchModel.open(module), example).path == first.path
    assert export(replace(first.model, name="copy"), example).path.is_file() and first.path.is_file()
    with torch.no_grad():
        module.linear.bias.add_(1)
    assert export(TorchModel.open(module), example).path != first.path
