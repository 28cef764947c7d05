"""The run of a search in a model."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtops.backend.onnx.messages import ModelProto
from trtops.backend.onnx.model import Model
from trtops.ops.model.model_files import Source, open_model
from trtops.ops.result import OpRun, Result, model_file, model_source, op_run, run_step
from trtops.tracking import schema
from trtops.tracking.base import Tracker


@dataclass(frozen=True)
class SearchRun:
    """The run of a search, and the loaded model; ``title`` and ``subject`` are those of its result."""

    op: OpRun
    model: Model
    title: str
    subject: str
    _started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Seconds since the model was loaded."""
        return time.perf_counter() - self._started

    def finish(self, result: Result, metric: str, numbers: Mapping[str, float], artifact: str) -> Result:
        """Log numbers and the result, and end the run; returns the result with title, subject and run."""
        self.op.run.log_metrics(schema.family(metric, **numbers))
        return self.op.finish(replace(result, title=self.title, subject=self.subject), artifact=artifact)


@contextmanager
def search_run(
    kind: schema.Kind,
    model: Source,
    file: str | Path | None = None,
    *,
    side: str = "",
    tracker: Tracker | None = None,
    experiment: str | None = None,
    tags: Mapping[str, str] | None = None,
    parent: str | None = None,
) -> Iterator[SearchRun]:
    """Open the run of a search, and load the model as its first step.

    ``file`` is the source file of a model in memory, and ``side`` is appended to the name of the run.
    """
    # The run begins before the model is read, and records an unreadable one as its error.
    if file is None and not isinstance(model, ModelProto):
        file = model_file(model) if not isinstance(model, Model) or model.path else None
    name = Path(file).stem if file is not None else model.name if isinstance(model, Model) else "model"
    source = str(file or "") if isinstance(model, ModelProto) else model_source(model) or str(file or "")
    run_name = f"{name} {kind} {side}".rstrip()
    title = f"{kind} {name if file is None else Path(file).name}"
    with op_run(tracker, experiment or name, run_name, kind=kind, model=file, tags=tags, parent=parent) as op:
        yield SearchRun(op, run_step("load", open_model, model), title, source)
