"""Bundle: one zip with which a stranger repeats a run's verdict, without trtops."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trtops import errors
from trtops.allowed import ask_for
from trtops.backend.base import Build
from trtops.backend.trt.choices.timing_cache import TimingCache
from trtops.ops.auditing.rebuilding import Logged, MaterialFolder, gather
from trtops.ops.bundling.case import Case, case_of
from trtops.ops.bundling.config import BundleConfig, BundleResult
from trtops.ops.bundling.failed import failed_case, is_failed_build
from trtops.ops.bundling.files import case_files, environment_text, tried, write_zip
from trtops.ops.bundling.issue import issue_text
from trtops.ops.bundling.stripping import with_random_weights
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.feeds import scripts_of
from trtops.record import sha256_file
from trtops.spec import Environment
from trtops.tactics.record import TacticRecord
from trtops.tracking import schema
from trtops.tracking.base import RunInfo, StoredRun, Tracker
from trtops.tracking.materials import read_materials

_LIBRARIES = {"onnxruntime": "onnxruntime", "tensorrt": "tensorrt"}


def bundle(run: str, config: BundleConfig | None = None, *, tracker: Tracker) -> BundleResult:
    """Pack a run's build so that a stranger repeats its verdict, and try that before the file is written.

    Args:
        run: A build's run or an iteration's, or what its id begins with; also of a build that failed.
        config: What goes in.
        tracker: The memory, which is only read.

    Returns:
        Where the zip is, and what its script printed.

    Raises:
        RunNotFoundError: If there is no such run.
        IncompleteRunError: If it is not whole, or holds no build.
        ReproductionError: If the script does not repeat the verdict, or not without the weights; nothing is written.
        ConfigError: If the run names a script that may not be run.
        OSError: If the zip cannot be written.
    """
    config = BundleConfig() if config is None else config
    run = tracker.whole_id(run)
    info = tracker.info(run)
    if is_failed_build(info):
        return _bundle_of_failed(info, config, tracker)
    stored = tracker.load(run)
    verdict = stored.info.verdict
    if verdict is None:
        raise errors.ReproductionError(f"Run {stored.info.id} has no verdict to repeat.")
    ask_for(stored.info.id, _scripts_named(stored), (), allowed=config.allow_scripts)
    logged = gather(stored, tracker, MaterialFolder(config.materials))
    name = f"{stored.info.experiment} {logged.build.spec.config.precision}"
    case = case_of(logged, name, verdict)
    result = write_bundle(
        case,
        _with_output(config, stored.info),
        logged.build.engine.environment,
        tactics=logged.build.tactics,
        extra=_extra_files(logged, stripped=config.strip_weights),
    )
    return replace(
        result,
        title=f"bundle {name}",
        missing=logged.missing,
        run_id=stored.info.id,
        url=stored.info.url,
        experiment=stored.info.experiment,
    )


def _bundle_of_failed(info: RunInfo, config: BundleConfig, tracker: Tracker) -> BundleResult:
    """The bundle of a build that came to no engine."""
    name = f"{info.experiment} {info.params.get('precision', '')}".strip()
    case, environment, extra, missing = failed_case(info, tracker, MaterialFolder(config.materials), name)
    if config.strip_weights:
        extra = {path: data for path, data in extra.items() if not path.startswith("caches/")}
    result = write_bundle(case, _with_output(config, info), environment, extra=extra)
    return replace(
        result, title=f"bundle {name}", missing=missing, run_id=info.id, url=info.url, experiment=info.experiment
    )


def _with_output(config: BundleConfig, info: RunInfo) -> BundleConfig:
    """The config with the name of a file in it: experiment and run unless one was given."""
    return replace(config, output=config.output or f"{info.experiment}-{info.id[:8]}.zip".replace("/", "-"))


def write_bundle(
    case: Case,
    config: BundleConfig,
    environment: Environment,
    *,
    tactics: TacticRecord | None = None,
    extra: Mapping[str, bytes] | None = None,
) -> BundleResult:
    """Write the bundle of a case.

    Args:
        case: The case.
        config: What goes in; ``output`` is given.
        environment: Where the verdict was reached.
        tactics: The choices of the build.
        extra: Further files, by their paths inside.

    Raises:
        ReproductionError: If the script does not repeat the verdict; nothing is written.
        OSError: If the zip cannot be written.
    """
    assert config.output is not None
    stripped: tuple[str, ...] = ()
    how = ""
    runs_here = find_spec(_LIBRARIES[case.backend]) is not None
    if config.strip_weights:
        if not runs_here:
            raise errors.ReproductionError(
                f"Whether random weights show the fault is seen by running them, and {case.backend} is not here. Bundle it where it is."
            )

        def shows(candidate: Case) -> str | None:
            good, printed = tried(case_files(candidate, environment), config.timeout_seconds)
            return None if good else _verdict_in(printed)

        case, stripped, how = with_random_weights(case, shows, config.attempts, config.seed)
    files = case_files(case, environment)
    said = ""
    if runs_here:
        good, said = tried(files, config.timeout_seconds)
        if not good:
            raise errors.ReproductionError(
                f"Outside of trtops the case gives {_verdict_in(said)}, and not {case.verdict}:\n{said}\n"
                "The verdict rests on something that the script does not repeat; nothing was written."
            )
    files |= {"environment.json": environment_text(environment), **(extra or {})}
    files["issue.md"] = issue_text(case, environment, tactics, said, stripped, how).encode("utf-8")
    write_zip(config.output, files)
    return BundleResult(
        title=f"bundle {case.name}",
        repeats=case.verdict,
        path=config.output,
        sha256=sha256_file(config.output),
        size=Path(config.output).stat().st_size,
        files=tuple(sorted(files)),
        stripped=stripped,
        how=how,
        said=said,
    )


def _verdict_in(printed: str) -> str:
    """The verdict that a script printed; what it said last where it printed none."""
    lines = printed.strip().splitlines() or ["nothing"]
    found = next((line for line in reversed(lines) if line.startswith("verdict: ")), None)
    return lines[-1][:200] if found is None else found.split()[1]


def _scripts_named(stored: StoredRun) -> list[str]:
    path = schema.Artifact.MATERIALS
    materials = read_materials(stored.read_bytes(path)) if path in stored.manifest else None
    return [] if materials is None else scripts_of(CheckConfig.from_dict(materials.check).data)


def _extra_files(logged: Logged, *, stripped: bool) -> dict[str, bytes]:
    """What is not needed to repeat the verdict, and tells how it came about; without the weights no engine and no ranges."""
    build = logged.build
    files: dict[str, Any] = {
        "spec.json": build.spec.to_json().encode("utf-8"),
        "tactics.json": build.tactics.to_json().encode("utf-8"),
        "layers.json": json.dumps([layer.to_dict() for layer in build.layers], indent=1).encode("utf-8"),
        "caches/timing.cache": _timing_bytes(build),
        "build.log": build.log.encode("utf-8"),
    }
    if not stripped:
        suffix = {"onnxruntime": ".ort", "tensorrt": ".engine"}[build.spec.config.backend]
        files["caches/calibration.cache"] = build.calibration_cache
        files[f"engine/engine{suffix}"] = build.engine.plan or None
    return {name: data for name, data in files.items() if data is not None}


def _timing_bytes(build: Build) -> bytes | None:
    """The timing cache as the back end's own library reads it: of TensorRT without the line that trtops puts before it."""
    if build.timing_cache is None or build.spec.config.backend != "tensorrt":
        return build.timing_cache
    return TimingCache.from_bytes(build.timing_cache).data
