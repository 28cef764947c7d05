"""What a search leaves in the tracking store: one run, named after the model, with tags, ended."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests import models
from trtops import errors
from trtops.backend.onnx.submodel import SubModel
from trtops.ops.result import OpResult
from trtops.ops.search.accuracy import Emulated, accuracy
from trtops.ops.search.precision import precision
from trtops.ops.search.reduce import reduce
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Tag


def has_no_add(part: SubModel) -> bool:
    return all(node.op_type != "Add" for node in part.proto.graph.node)


OPS: dict[str, tuple[Callable[..., OpResult], str]] = {
    "reduce": (lambda model, **options: reduce(model, has_no_add, **options), "multi_output reduce"),
    "precision": (precision, "multi_output precision"),
    "accuracy": (
        lambda model, **options: accuracy(model, Emulated("fp16"), **options),
        "multi_output accuracy emulated fp16",
    ),
}


@pytest.mark.parametrize("kind", OPS)
def test_a_search_opens_its_own_run(kind: str, tmp_path: Path) -> None:
    op, name = OPS[kind]
    path, tracker = models.multi_output().write(tmp_path), MemoryTracker()

    for result in (
        op(onnx.load(path), file=path, tracker=tracker, tags={"a": "b"}),
        op(path, tracker=tracker, tags={"a": "b"}),
    ):
        info = tracker.load(result.run_id).info
        assert (info.name, info.experiment, info.status, info.verdict) == (name, path.stem, "finished", result.verdict)
        assert info.tags[Tag.KIND] == kind and info.tags[Tag.MODEL_PATH] == str(path) and info.tags["a"] == "b"
        assert result.experiment == path.stem
        assert result.page().startswith(f"# {kind} {path.name}: {result.headline}\n")

    # Only a file that exists leaves a failed run.
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    for name, statuses in (("nowhere", []), ("broken", ["failed"])):
        with pytest.raises(errors.InvalidModelError, match=name):
            OPS[kind][0](tmp_path / f"{name}.onnx", tracker=tracker, experiment="lost")

        assert [info.status for info in tracker.find("lost")] == statuses
