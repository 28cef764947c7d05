"""Triton model repositories: ``config.pbtxt``, numbered versions, warm-up requests, and a client.

The rules are those of Triton's model configuration and of its back ends for TensorRT and ONNX Runtime. An engine is
described by the facts of :mod:`trtops.serving.certificate`.
"""

import os
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trtops import errors
from trtops.system.files import open_atomically
from trtops.system.processes import temporary_prefix
from trtops.verdict import PASSED

Facts = Mapping[str, Any]
Entry = Mapping[str, Any]  # of an input or output in the facts

_TYPES = {"bool": "BOOL", "float16": "FP16", "float32": "FP32", "float64": "FP64", "bfloat16": "BF16", "str": "STRING"}
_TYPES |= {name: name.upper() for bits in (8, 16, 32, 64) for name in (f"int{bits}", f"uint{bits}")}
_TENSORRT_TYPES = frozenset(("FP32", "FP16", "BF16", "INT8", "UINT8", "INT32", "INT64", "BOOL"))
_KIND_OF = {"CPUExecutionProvider": "KIND_CPU", "CUDAExecutionProvider": "KIND_GPU"}
_ROW_RELATIONS = ("batch size", "permuted rows", "equal rows")  # of the self-check


@dataclass(frozen=True, kw_only=True)
class TritonModel:
    """A model in a repository, and what limits it.

    Attributes:
        name: Of the model and its folder.
        facts: The facts of its engine.
        feeds: The inputs of the evaluation; the first ones are the warm-up request.
        golden: The golden outputs for them.
        max_batch: The largest batch that Triton may make, 0 for none (default: what profiles and self-check allow).
        instances: Instances on each device.
        labels: Names of the classes of the only output, one for each.
        allow_unproven: Whether the engine may have the verdict ``unproven``.
    """

    name: str
    facts: Facts
    feeds: Sequence[Mapping[str, np.ndarray]] = field(repr=False)
    golden: Sequence[Mapping[str, np.ndarray]] = field(repr=False)
    max_batch: int | None = None
    instances: int = 1
    labels: tuple[str, ...] = ()
    allow_unproven: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigError if Triton would not load the model, or would answer with what was not verified."""
        verdict, outputs = self.facts["verdict"]["verdict"], self.facts["outputs"]
        if verdict not in PASSED or (verdict == "unproven" and not self.allow_unproven):
            reasons = "; ".join(self.facts["verdict"]["reasons"]) or "no reason is recorded"
            hint = " (--allow-unproven exports it)" if verdict == "unproven" else ""
            raise errors.ConfigError(f"The engine's verdict is {verdict}: {reasons}. Export a good one{hint}.")
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", self.name):
            rule = "letters, digits, '_', '-' and '.', and no '.' first: it becomes a folder and a part of URLs"
            raise errors.ConfigError(f"{self.name!r} cannot be the name of a model. Use {rule} (--name).")
        self.settings()
        for entry in (*self.facts["inputs"], *outputs):
            self.type_of(entry)
            if 0 in entry["shape"]:
                raise errors.ConfigError(f"{entry['name']!r} has shape {entry['shape']}; Triton has no empty tensors.")
            if not entry["shape"] and self.on_tensorrt:
                raise errors.ConfigError(
                    f"{entry['name']!r} is a scalar, which Triton's back end for TensorRT has not."
                )
        if self.labels and (len(outputs) != 1 or outputs[0]["shape"][-1:] != [len(self.labels)]):
            shapes = {entry["name"]: entry["shape"] for entry in outputs}
            raise errors.ConfigError(
                f"{len(self.labels)} labels are for one output of that many classes, not {shapes}."
            )
        if self.max_batch and self.no_batches:
            raise errors.ConfigError(f"Triton cannot batch this model: {self.no_batches}. Leave out --max-batch.")
        if self.max_batch and self.facts["profiles"] and self.max_batch > self.largest_batch:
            limit = self.largest_batch
            raise errors.ConfigError(f"--max-batch is {self.max_batch}; the profiles take batches of up to {limit}.")

    @property
    def on_tensorrt(self) -> bool:
        """Whether Triton's back end for TensorRT runs the engine."""
        return bool(self.facts["engine"]["backend"] == "tensorrt")

    def type_of(self, entry: Entry) -> str:
        """Return Triton's name of a data type."""
        name = _TYPES.get(entry["dtype"], "")
        if not name or (self.on_tensorrt and name not in _TENSORRT_TYPES):
            raise errors.ConfigError(f"{entry['name']!r} is {entry['dtype']}, which Triton's back end does not take.")
        return name

    def is_shape_tensor(self, entry: Entry) -> bool:
        """True if the profiles of an input have values and not shapes."""
        shape = entry["shape"]
        ranges = [profile[entry["name"]] for profile in self.facts["profiles"] if entry["name"] in profile]
        return self.on_tensorrt and any(-1 not in shape and [*limits["max"]] != shape for limits in ranges)

    @property
    def no_batches(self) -> str:
        """Why Triton does not batch requests; empty if it does."""
        if self.max_batch == 0:
            return "as requested"
        self_check = self.facts["verdict"]["self_check"] or {"held": (), "broken": ()}
        for entry in (*self.facts["inputs"], *self.facts["outputs"]):
            if entry["shape"][:1] != [-1] or self.is_shape_tensor(entry):
                return f"the first dimension of {entry['name']!r} ({entry['shape']}) is not a batch"
        for feed, golden in zip(self.feeds, self.golden):
            rows = {name: array.shape[0] for name, array in (*feed.items(), *golden.items())}
            if len(set(rows.values())) > 1:
                return f"the numbers of rows differ ({rows}), so the size of an output depends on the data"
        if broken := [name for name in _ROW_RELATIONS if name in self_check["broken"]]:
            return f"rows of a batch depend on each other: the self-check {', '.join(broken)} is broken"
        if "batch size" not in self_check["held"]:
            return "no self-check shows that rows of a batch do not depend on each other (convert with --self-check)"
        if self.facts["profiles"] and not self.largest_batch:
            return f"the profiles exclude batches of 1, which Triton sends: {self.facts['profiles']}"
        if self.max_batch is None and not self.facts["profiles"]:
            return "no profile limits the batches; --max-batch sets the largest"
        return ""

    @property
    def largest_batch(self) -> int:
        """The largest batch that every profile, or others of the same shapes, take, and all smaller ones; or 0."""
        spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for profile in self.facts["profiles"]:
            limits = profile.values()
            other_dimensions = str([(name, axes["min"][1:], axes["max"][1:]) for name, axes in profile.items()])
            spans[other_dimensions].append(
                (max(axes["min"][0] for axes in limits), min(axes["max"][0] for axes in limits))
            )
        largest = []
        for ranges in spans.values():
            end = 0
            for low, high in sorted(ranges):
                end = max(end, high) if low <= end + 1 else end
            largest.append(end)
        return min(largest, default=0)

    @property
    def batch(self) -> int:
        """``max_batch_size``: 0 if Triton does not batch."""
        return 0 if self.no_batches else self.largest_batch if self.max_batch is None else self.max_batch

    def settings(self) -> list[str]:
        """Return where instances run, and the settings of the back end, as lines of the configuration."""
        engine, built_by = self.facts["engine"], self.facts["environment"]["backend"]
        lines = [f"  count: {self.instances}"]
        if self.on_tensorrt:
            if built_by != "tensorrt":
                raise errors.ConfigError(f"The engine was built by {built_by}, for which Triton has no back end.")
            profiles = ", ".join(quoted(str(index)) for index in range(len(self.facts["profiles"])))
            lines += ["  kind: KIND_GPU", *([f"  profile: [ {profiles} ]"] if len(self.facts["profiles"]) > 1 else [])]
            return ["instance_group {", *lines, "}"]
        provider = engine["options"].get("providers", ["CPUExecutionProvider"])[0]
        if provider not in _KIND_OF:
            raise errors.ConfigError(f"The engine runs on {provider}; Triton can repeat {', '.join(_KIND_OF)} only.")
        lines = ["instance_group {", *lines, f"  kind: {_KIND_OF[provider]}", "}"]
        options = engine["options"].get("provider_settings", {}).items() if _KIND_OF[provider] == "KIND_GPU" else ()
        accelerator = [f"    parameters {{ key: {quoted(key)} value: {quoted(value)} }}" for key, value in options]
        if accelerator:
            start = ["  execution_accelerators { gpu_execution_accelerator {", '    name: "cuda"']
            accelerator = [*start, *accelerator, "  } }"]
        # Level 2 optimizes nothing: an engine in ONNX Runtime's own format is optimized.
        level = ["  graph { level: 2 }"] if engine["file"].endswith(".ort") else []
        lines += ["optimization {", *level, *accelerator, "}"] if level or accelerator else []
        if threads := engine["options"].get("intra_op_threads"):
            lines.append(f'parameters {{ key: "intra_op_thread_count" value: {{ string_value: "{threads}" }} }}')
        return lines

    def config(self) -> str:
        """Return ``config.pbtxt``."""
        platform = "tensorrt_plan" if self.on_tensorrt else "onnxruntime_onnx"
        lines = [f"name: {quoted(self.name)}", f"platform: {quoted(platform)}", f"max_batch_size: {self.batch}"]
        lines.append(f"default_model_filename: {quoted(self.facts['engine']['file'])}")
        for group in ("inputs", "outputs"):
            for entry in self.facts[group]:
                lines += [f"{group[:-1]} {{", *self._tensor(entry), "}"]
                if group == "outputs" and self.labels:
                    lines.insert(-1, '  label_filename: "labels.txt"')
        if self.batch > 1:
            best = {axes["opt"][0] for profile in self.facts["profiles"] for axes in profile.values()}
            preferred = ", ".join(str(size) for size in sorted(best) if 1 < size <= self.batch)
            lines.append("dynamic_batching {")
            lines += [f"  preferred_batch_size: [ {preferred} ]"] if preferred else []
            lines.append("}")
        lines += self.settings()
        for size in sorted({1, self.batch}) if self.batch else (1,):
            lines += ["model_warmup {", f'  name: "batch of {size}"', f"  batch_size: {size}"]
            for index, entry in enumerate(self.facts["inputs"]):
                shape = self.feeds[0][entry["name"]].shape[int(self.batch > 0) :]
                dims = ", ".join(map(str, shape or (1,)))
                source = "zero_data: true" if self.type_of(entry) == "STRING" else f'input_data_file: "input_{index}"'
                data = f"data_type: TYPE_{self.type_of(entry)} dims: [ {dims} ] {source}"
                lines.append(f"  inputs {{ key: {quoted(entry['name'])} value: {{ {data} }} }}")
            lines.append("}")
        return "\n".join([*lines, ""])

    def _tensor(self, entry: Entry) -> Iterator[str]:
        """Yield the lines of an input or output, without the dimension that Triton batches."""
        dims = entry["shape"][1:] if self.batch else entry["shape"]
        yield f"  name: {quoted(entry['name'])}"
        yield f"  data_type: TYPE_{self.type_of(entry)}"
        # Triton has no tensors without dimensions; ONNX Runtime's back end takes one element for a scalar.
        yield f"  dims: [ {', '.join(map(str, dims or [1]))} ]"
        if self.batch and not dims:
            yield "  reshape { shape: [ ] }"
        if self.is_shape_tensor(entry):
            yield "  is_shape_tensor: true"

    def write(self, repository: Path, engine: Mapping[str, bytes], client: Mapping[str, bytes]) -> int:
        """Add the next version with the files of its engine and a client, and return its number."""
        folder = repository / self.name
        versions = [int(match[0]) for path in folder.glob("*/") if (match := re.match(r"\d+", path.name))]
        version = max(versions, default=0) + 1
        config, existing = self.config(), folder / "config.pbtxt"
        tensors = config[config.index("input {") : config.index("instance_group {")].split("dynamic_batching")[0]
        labels = '  label_filename: "labels.txt"\n'  # may differ: versions of the same outputs have the same labels
        if existing.exists() and tensors.replace(labels, "") not in existing.read_text("utf-8").replace(labels, ""):
            raise errors.ConfigError(
                f"{folder} holds a model with other inputs, outputs or batches, and all versions of a model have one "
                "configuration: use another --name or the same --max-batch, or remove the folder."
            )
        files = {f"client/{name}": content for name, content in client.items()}
        for index, entry in enumerate(self.facts["inputs"]):
            array = self.feeds[0][entry["name"]]
            files[f"warmup/input_{index}"] = (array[:1] if self.batch else array).tobytes()
        files |= {"labels.txt": "".join(f"{label}\n" for label in self.labels).encode()} if self.labels else {}
        new = folder / f"{temporary_prefix('export')}{version}"
        new.mkdir(parents=True)
        try:
            for name, content in engine.items():
                (new / name).write_bytes(content)
            for name, content in {**files, "config.pbtxt": config.encode("utf-8")}.items():
                (folder / name).parent.mkdir(exist_ok=True)
                with open_atomically(folder / name) as file:
                    file.write(content)
            os.rename(new, folder / str(version))  # Triton takes folders with a number for versions
        finally:
            shutil.rmtree(new, ignore_errors=True)
        return version


def quoted(text: str) -> str:
    """Return a string of protobuf's text format."""
    escaped = [c if " " <= c <= "~" and c not in '"\\' else "".join(f"\\{b:03o}" for b in c.encode()) for c in text]
    return f'"{"".join(escaped)}"'
