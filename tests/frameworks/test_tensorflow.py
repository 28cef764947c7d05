"""TensorFlow and Keras models through tf2onnx; runs where both are installed, as in ``tests/matrix.py``."""

from pathlib import Path

import numpy as np
import pytest

from trtops import errors
from trtops.backend.onnx.from_tensorflow import OnnxFromTensorFlow
from trtops.backend.onnx.loader import OnnxFromTfGraph
from trtops.backend.onnxrt.runner import reference_outputs
from trtops.cli.main import main

tf = pytest.importorskip("tensorflow")
pytest.importorskip("tf2onnx")

IMAGE = np.random.default_rng(0).random((2, 8, 8, 3), np.float32)
ROWS = np.random.default_rng(1).random((2, 8), np.float32)


@pytest.fixture(scope="module")
def keras_model() -> object:
    keras = pytest.importorskip("keras")
    keras.utils.set_random_seed(0)
    layers = keras.layers
    body = [layers.Conv2D(4, 3, activation="relu"), layers.Flatten(), layers.Dense(5, activation="softmax")]
    return keras.Sequential([layers.Input((8, 8, 3), name="image"), *body])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, keras_model: object) -> Path:
    """The model as Keras files, a saved model and a frozen graph."""
    from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

    folder = tmp_path_factory.mktemp("tensorflow")
    keras_model.save(folder / "model.keras")  # type: ignore[attr-defined]
    keras_model.save(folder / "model.h5")  # type: ignore[attr-defined]
    keras_model.export(str(folder / "saved"))  # type: ignore[attr-defined]
    spec = tf.TensorSpec((None, 8, 8, 3), tf.float32, name="image")
    frozen = convert_variables_to_constants_v2(tf.function(keras_model).get_concrete_function(spec))
    tf.io.write_graph(frozen.graph, str(folder), "frozen.pb", as_text=False)
    return folder


@pytest.mark.parametrize(
    ("name", "kind"), [("model.keras", "keras"), ("model.h5", "keras"), ("saved", "ckpt"), ("frozen.pb", "frozen")]
)
def test_a_model_computes_what_tensorflow_computes(name: str, kind: str, files: Path, keras_model: object) -> None:
    converted = OnnxFromTensorFlow(files / name, kind)()  # type: ignore[arg-type]

    [given] = [value.name for value in converted.graph.input]
    [found] = reference_outputs(converted, [{given: IMAGE}])[0].values()
    np.testing.assert_allclose(found, np.asarray(keras_model(IMAGE)), rtol=1e-4, atol=1e-6)  # type: ignore[operator]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A checkpoint of TensorFlow 1's kind, and what its graph computes of ``ROWS``."""
    v1, folder = tf.compat.v1, tmp_path_factory.mktemp("checkpoint")
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, (None, 8), name="x")
        weight = v1.get_variable("w", (8, 3), initializer=v1.random_normal_initializer(seed=0))
        y = tf.identity(tf.nn.relu(tf.matmul(x, weight)), name="y")
        session.run(v1.global_variables_initializer())
        v1.train.Saver().save(session, str(folder / "model"))
        return folder, session.run(y, {x: ROWS})


def test_a_checkpoint_knows_its_inputs_and_outputs(checkpoint: tuple[Path, np.ndarray]) -> None:
    folder, wanted = checkpoint
    for outputs in (None, ["y"], ["y:0"]):
        converted = OnnxFromTensorFlow(folder, "ckpt", checkpoint="model", outputs=outputs)()
        assert [value.name for value in converted.graph.input] == ["x:0"]
        found = reference_outputs(converted, [{"x:0": ROWS}])[0]["y:0"]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_graph_in_memory_is_converted() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, (None, 8), name="x")
        tf.identity(tf.nn.relu(x), name="y")

    converted = OnnxFromTfGraph((graph, ["y:0"]))()

    np.testing.assert_array_equal(reference_outputs(converted, [{"x:0": ROWS}])[0]["y:0"], np.maximum(ROWS, 0))


def test_commands_accept_tensorflow_files(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("inputs.npz", image=IMAGE)
    load = ["--onnxrt", "--load-inputs", "inputs.npz"]

    assert main(["convert", str(files / "model.keras"), "-o", "model.onnx"]) == 0
    assert main(["run", str(files / "model.keras"), *load, "--save-outputs", "a.json"]) == 0
    assert main(["run", "model.onnx", *load, "--load-outputs", "a.json"]) == 0
    assert main(["inspect", "model", str(files / "frozen.pb")]) == 0
    assert "Graph Output(s)" in capsys.readouterr().out


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.keras").write_bytes(b"nothing of the kind")
    (tmp_path / "frozen.pb").write_bytes(b"\xff" * 40)

    for name, kind, said in (
        ("model.keras", "keras", "tf2onnx cannot convert"),
        ("frozen.pb", "frozen", "cannot read"),
    ):
        with pytest.raises(errors.InvalidModelError, match=f"{said} .*{name}"):
            OnnxFromTensorFlow(tmp_path / name, kind)()  # type: ignore[arg-type]
