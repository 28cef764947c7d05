"""Opens earlier campaigns: to mix builds, to prove a suspect, to promote a good build."""

import contextlib
from pathlib import Path

from trtops import errors
from trtops.backend.onnx.model import Model
from trtops.ops.campaign.config import Campaign, DebugBuildConfig
from trtops.ops.evaluation.data import scripts_of
from trtops.system.allowed import ask_for
from trtops.tracking import campaigns, schema
from trtops.tracking.base import RunInfo, Tracker
from trtops.tracking.records import run_id_of


def open_campaign(
    tracker: Tracker, run_id: str, *, model: str | Path | None = None, allow_scripts: bool = False
) -> Campaign:
    """Read a campaign from its parent run, finished or not."""
    run_id = run_id_of(run_id, tracker)
    info = tracker.info(run_id)
    campaigns.require_campaign(info)
    data = campaigns.read_config(tracker, info)
    if data is None:
        raise errors.ConfigError(f"Run {run_id} has no {schema.Artifact.CAMPAIGN}: its campaign ended before it began.")
    return Campaign(
        run_id=run_id,
        experiment=info.experiment,
        model=str(find_model(tracker, info, model)),
        model_sha256=info.tags.get(schema.Tag.MODEL_SHA256, ""),
        config=stored_config(run_id, data, allow_scripts=allow_scripts),
        golden_sha256=info.tags.get(schema.Tag.GOLDEN_SHA256),
    )


def stored_config(run_id: str, data: bytes, *, allow_scripts: bool) -> DebugBuildConfig:
    """Read a campaign's config from its run's data."""
    config = DebugBuildConfig.from_json(data)
    scripts = scripts_of(config.check.data, config.calibration_data)
    commands = [] if config.command is None else [config.command.command]
    ask_for(run_id, scripts, commands, allowed=allow_scripts)
    return config


def find_model(tracker: Tracker, info: RunInfo, given: str | Path | None = None) -> Path:
    """The ONNX file of a run: the given one, the one at its old place if it is the same, or the one that was kept."""
    if given is not None:
        return Path(given).absolute()
    named = Path(info.fact(schema.Tag.MODEL_PATH) or "model.onnx").absolute()
    with contextlib.suppress(errors.InvalidModelError):  # on another machine, any file may be at that place
        if named.is_file() and Model.load(named).info.sha256 == info.tags.get(schema.Tag.MODEL_SHA256):
            return named
    if info.status == "finished":
        stored = tracker.load(info.id)
        # Including data files, which the model needs next to it.
        if kept := [stored.local_path(path) for path in stored.paths(schema.Artifact.MODEL)]:
            return next((file for file in kept if file.suffix == ".onnx"), kept[0])
    raise errors.ConfigError(f"The model of run {info.id} is not at {named}, and the run kept none. Give its path.")
