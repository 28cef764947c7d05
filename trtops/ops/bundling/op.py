"""Bundle: pack a run into a zip file to reproduce its verdict without trtops."""

import contextlib
import json
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx.model import Model, is_large
from trtops.backend.onnx.save import save_model
from trtops.backend.trt.choices.timing_cache import TimingCache
from trtops.comparator.arrays import as_arrays
from trtops.comparator.results import IterationResult, RunResults
from trtops.extras import installed
from trtops.json import from_json
from trtops.ops.arguments import checked_arguments
from trtops.ops.bundling.case import Case, case_of, engine_case
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.data import golden_outputs, scripts_of
from trtops.ops.evaluation.right_model import RightModel
from trtops.ops.result import OpResult, tracker_or_default
from trtops.ops.search.command import run_group
from trtops.ops.stored_build import Logged, MaterialFolder, gather
from trtops.record import Config, setting, sha256_file
from trtops.spec import BuildSpec, Environment
from trtops.system.allowed import ask_for
from trtops.system.files import open_atomically
from trtops.system.masking import masked
from trtops.system.processes import temporary_prefix
from trtops.tables import size
from trtops.tracking import schema
from trtops.tracking.base import RunInfo, Tracker, run_id_of
from trtops.tracking.builds import read_materials
from trtops.verdict import Verdict

_PACKAGE = Path(__file__).parents[2]
_SCRIPTS = {"onnxruntime": "backend/onnxrt/reproduce.py", "tensorrt": "backend/trt/reproduce.py"}
_REQUIRED = {"onnxruntime": ("numpy", "onnxruntime"), "tensorrt": ("numpy", "tensorrt", "cuda-python")}
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # a fixed time, so that equal cases give equal bytes


@dataclass(frozen=True, kw_only=True)
class BundleConfig(Config):
    """Options of a bundle.

    Attributes:
        output: The zip file; ``<experiment>-<run>.zip`` in the working folder by default.
        materials: Folder that is searched by digest for the model, if the run did not log it.
        allow_scripts: Allow data scripts that the run names.
        timeout_seconds: Time limit of the script when it is tried.
    """

    output: str | None = setting(None, file="writes")
    materials: str | None = setting(None, file="reads")
    allow_scripts: bool = False
    timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.output is not None and not self.output.endswith(".zip"):
            raise errors.ConfigError(f"output is {self.output!r}; a bundle is a .zip file.")


@dataclass(frozen=True, kw_only=True)
class BundleResult(OpResult):
    """A bundle, with the reproduced verdict and the names of its members."""

    is_named_by_outcome = True

    verdict: Verdict = "good"  # always: a bundle that does not reproduce its verdict is not written
    repeats: Verdict
    path: str
    sha256: str  # of the zip file; equal cases give equal digests
    size: int
    files: tuple[str, ...]
    printed: str = ""  # by its script when it was tried; empty if the back end is not installed here
    missing: tuple[str, ...] = ()  # from the run, and what is used instead

    @property
    def headline(self) -> str:
        """The reproduced verdict."""
        return f"reproduces {self.repeats}{'' if self.printed else ', not tried here'}"

    @property
    def because(self) -> tuple[str, ...]:
        """Inputs that are missing from the run, with what is used instead."""
        return self.missing

    @property
    def figures(self) -> str:
        """The file, and its use."""
        return f"{self.path}, {size(self.size)}, with the model and its inputs; unpack it and run `python reproduce.py`"

    def body(self) -> Iterable[str]:
        """Path, members, and output of the script."""
        yield f"`{self.path}`, {size(self.size)}, SHA-256 `{self.sha256}`. Unpack it and run `python reproduce.py`."
        yield "It holds the model and the inputs of the evaluation: give it only to people who may have them."
        yield from (f"- {input_name}" for input_name in self.missing)
        if self.printed:
            yield from ("", "```", self.printed.rstrip(), "```")
        yield from ("", *(f"- `{name}`" for name in self.files))


@checked_arguments
def bundle(run: str, config: BundleConfig = BundleConfig(), *, tracker: Tracker | None = None) -> BundleResult:
    """Pack a run, a build or an iteration, failed ones included, to reproduce its verdict without trtops.

    ConfigError, and no file, if the script does not reproduce the verdict; ConfigError if the run names a script
    that is not allowed.

    >>> check = trtops.CheckConfig(data="feed.npz")
    >>> built = trtops.convert("model.onnx", trtops.ConvertConfig(check=check))
    >>> bundle(built.run_id, BundleConfig(output="case.zip")).headline
    'reproduces good'
    """
    tracker = tracker_or_default(tracker)
    info = tracker.info(run_id_of(run, tracker))
    config = replace(config, output=config.output or f"{info.experiment}-{info.id[:8]}.zip".replace("/", "-"))
    folder = MaterialFolder(config.materials)
    missing: tuple[str, ...]
    if info.status == "failed" and info.kind in ("build", "iteration"):
        case, environment, extra, missing = _failed_case(info, tracker, folder)
    else:
        stored = tracker.load(info.id)
        if stored.info.verdict is None:
            raise errors.ConfigError(f"Run {info.id} has no verdict to reproduce.")
        if schema.Artifact.MATERIALS in stored.manifest:
            materials = read_materials(stored.read_bytes(schema.Artifact.MATERIALS))
            scripts = [] if materials is None else scripts_of(CheckConfig.from_dict(materials.check).data)
            # The store may be shared: anyone who can write to it could otherwise run code here.
            ask_for(info.id, scripts, (), allowed=config.allow_scripts)
        logged = gather(stored, tracker, folder)
        name = f"{info.experiment} {logged.build.spec.config.precision}"
        case, environment = case_of(logged, name, stored.info.verdict), logged.build.engine.environment
        extra, missing = _extra_files(logged), (*logged.missing, *filter(None, (case.note,)))
    result = write_bundle(case, config, environment, extra=extra)
    return replace(result, missing=missing, run_id=info.id, url=info.url, experiment=info.experiment)


def _extra_files(logged: Logged) -> dict[str, bytes]:
    """Files not needed to reproduce the verdict, but showing its history."""
    build = logged.build
    timing = build.timing_cache
    if timing is not None and build.spec.config.backend == "tensorrt":
        timing = TimingCache.from_bytes(timing).data  # without the header of trtops
    suffix = {"onnxruntime": ".ort", "tensorrt": ".engine"}[build.spec.config.backend]
    files: dict[str, bytes] = {
        "spec.json": build.spec.to_json().encode("utf-8"),
        "tactics.json": build.tactics.to_json().encode("utf-8"),
        "build.log": build.log.encode("utf-8"),
    }
    if timing is not None:
        files["caches/timing.cache"] = timing
    if build.calibration_cache is not None:
        files["caches/calibration.cache"] = build.calibration_cache
    if build.engine.plan:
        files[f"engine/engine{suffix}"] = build.engine.plan
    return files


def _failed_case(
    info: RunInfo, tracker: Tracker, folder: MaterialFolder
) -> tuple[Case, Environment, dict[str, bytes], tuple[str, ...]]:
    """The case of a failed build, its environment, further files, and missing materials."""
    # Such a run has no manifest, so its files are read as they are; the model is checked by its digest.
    spec_bytes = tracker.peek(info.id, schema.Artifact.SPEC)
    environment_bytes = tracker.peek(info.id, schema.Artifact.ENVIRONMENT)
    try:
        materials = read_materials(tracker.peek(info.id, schema.Artifact.MATERIALS))
    except (ValueError, RecursionError) as exc:
        raise errors.FormatError(f"Run {info.id}: {schema.Artifact.MATERIALS} is not JSON ({exc}).") from None
    build_error = info.tags.get(schema.Tag.ERROR, "")
    if spec_bytes is None or environment_bytes is None or materials is None:
        raise errors.ConfigError(
            f"Run {info.id} failed before it began to build, so nothing can be reproduced: {build_error}"
        )
    spec, check = BuildSpec.from_json(spec_bytes), CheckConfig.from_dict(materials.check)
    model = _failed_model(info, tracker, folder, spec.model_sha256)
    missing: tuple[str, ...] = ()

    def material(name: str) -> bytes | None:
        entry = materials.of(name)
        return tracker.peek(info.id, entry.path) if entry is not None and entry.path else None

    data, ranges = material("data"), material("calibration_cache")
    source: Iterable[Feed]
    if check.data is not None and data is not None:
        source = from_json(data)
    else:
        missing = () if check.data is None else (f"data {check.data!r}: random data is used",)
        source = replace(check, data=None).open_for(model, profiles=spec.config.profiles)
    feeds = list(map(as_arrays, source))
    golden: Sequence[Mapping[str, Any]]
    try:
        golden = list(golden_outputs(model, feeds, None)[0][1])
    except errors.TrtopsError:  # the model does not run at all
        golden = [{} for _ in feeds]
    expected = RunResults([("golden", [IterationResult(dict(outputs)) for outputs in golden])])
    right = RightModel(model=model, build=spec.config, feeds=feeds, golden=expected, calibration=ranges)
    case = Case(
        name=f"{info.experiment} {info.params.get('precision', '')}".strip(),
        backend=spec.config.backend,
        model=model.proto(),
        feeds=feeds,
        golden=golden,
        tolerances=right.tolerances(check.tolerances),
        verdict="error",
        settings={},
        reasons=(build_error,) if build_error else (),
    )
    extra = {"spec.json": spec_bytes, **({"caches/calibration.cache": ranges} if ranges is not None else {})}
    environment = Environment.from_json(environment_bytes)
    return engine_case(case, spec.config, None, ranges, environment), environment, extra, missing


def _failed_model(info: RunInfo, tracker: Tracker, folder: MaterialFolder, digest: str) -> Model:
    """The model with a digest: from the run, from its original path, or from a folder."""
    path = Path(info.fact(schema.Tag.MODEL_PATH))
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("bundle")) as scratch:
        file = Path(scratch, "model.onnx")
        file.write_bytes((path.name and tracker.peek(info.id, f"{schema.Artifact.MODEL}{path.name}")) or b"")
        for candidate in filter(None, (file, path, folder.models.get(digest))):
            # The run's file cannot be read if its external data was not logged.
            with contextlib.suppress(errors.InvalidModelError):
                model = Model.load(candidate)
                if model.info.sha256 == digest:
                    return Model.from_proto(model.proto()) if candidate == file else model
    raise errors.ConfigError(
        f"The model of run {info.id} with digest {digest} is missing: the run did not log it completely, and {path} "
        "is gone or has changed. Give it in a folder (--materials)."
    )


def write_bundle(
    case: Case, config: BundleConfig, environment: Environment, *, extra: Mapping[str, bytes] | None = None
) -> BundleResult:
    """Try the script of a case, and write its bundle to ``config.output``, with ``extra`` members by path."""
    assert config.output is not None
    versions = {**dict(environment.packages), case.backend: environment.backend_version}
    pins = [f"{name}=={versions[name]}" for name in _REQUIRED[case.backend] if versions.get(name)]
    files = {
        "reproduce.py": (_PACKAGE / _SCRIPTS[case.backend]).read_bytes(),
        **case.files(),
        "constraints.txt": "".join(f"{line}\n" for line in (f"# python {environment.python}", *pins)).encode("utf-8"),
    }
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("bundle")) as folder:
        save_model(case.model, Path(folder, "model.onnx"), external_data_path="" if is_large(case.model) else None)
        files |= {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    printed = ""
    if installed(case.backend):
        # Tried before anything is written: a bundle that shows nothing wastes the time of those who get it.
        caches = {name: data for name, data in (extra or {}).items() if name.startswith("caches/")}
        good, printed = _try_script(files | caches, config.timeout_seconds)
        if not good:
            lines = [line for line in printed.splitlines() if line.startswith("verdict: ")]
            script_verdict = lines[-1].split()[1] if lines else "no verdict"
            raise errors.ConfigError(
                f"Without trtops the case gives {script_verdict} instead of {case.verdict}:\n{printed}\n"
                "The verdict depends on something that the script does not reproduce; nothing was written."
            )
    # Host name and commit are private, and bundles are made for strangers.
    public = {k: v for k, v in environment.to_dict().items() if k not in ("host", "git_commit")}
    files |= {"environment.json": json.dumps(public, indent=1, ensure_ascii=False).encode("utf-8"), **(extra or {})}
    files["issue.md"] = masked("\n".join(_issue_lines(case, environment, printed)) + "\n").encode("utf-8")
    path = Path(config.output)
    with open_atomically(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(files):
            member = zipfile.ZipInfo(name, _ZIP_EPOCH)
            member.external_attr = 0o644 << 16
            member.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(member, files[name])
    return BundleResult(
        title=f"bundle {case.name}",
        repeats=case.verdict,
        path=config.output,
        sha256=sha256_file(path),
        size=path.stat().st_size,
        files=tuple(sorted(files)),
        printed=printed,
    )


def _try_script(files: Mapping[str, bytes], timeout_seconds: float) -> tuple[bool, str]:
    """Run the script in a process without trtops; returns True if it reproduces the verdict, and its output."""
    with tempfile.TemporaryDirectory(prefix=temporary_prefix("bundle")) as folder:
        Path(folder, "caches").mkdir()
        for name, data in files.items():
            Path(folder, name).write_bytes(data)
        # Without PYTHONPATH and user packages, so that the script cannot import trtops by chance.
        code, printed = run_group([sys.executable, "-E", "-s", str(Path(folder, "reproduce.py"))], timeout_seconds)
    if code is None:
        raise errors.ConfigError(
            f"The script of the bundle did not end within {timeout_seconds:g} s. Increase the limit."
        )
    return code == 0, masked(printed.replace(f"{folder}/", ""))


def _issue_lines(case: Case, environment: Environment, printed: str) -> Iterable[str]:
    symptom = {"bad": "wrong outputs", "good": "correct outputs", "error": "an error"}[case.verdict]
    expected = "The outputs in `golden.npz`, within the tolerances in `case.json`." if case.golden[0] else "An engine."
    yield f"# {environment.backend} {environment.backend_version}: {symptom} of {case.name}"
    yield from ("", "## What happens", "")
    if printed:
        yield from ("```", printed.rstrip(), "```", "")
    yield from (f"- {reason}" for reason in (*case.reasons, case.note) if reason)
    yield from ("", "## What is expected", "", expected, "", "## How to reproduce", "", "```")
    yield from ("python -m pip install -r constraints.txt", "python reproduce.py", "```", "")
    yield from (f"- device: {environment.device}", f"- driver: {environment.driver or 'none'}", f"- {environment.os}")
