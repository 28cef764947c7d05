"""Opens earlier campaigns: to mix builds, to prove a suspect, to promote a good build."""

from pathlib import Path

from trtops import errors
from trtops.ops.campaign.config import Campaign, DebugBuildConfig
from trtops.ops.evaluation.data import scripts_of
from trtops.system.allowed import ask_for
from trtops.tracking import campaigns, schema
from trtops.tracking.base import Tracker, run_id_of
from trtops.tracking.builds import find_model


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
    scripts = scripts_of(config.check.data, config.calibration_data, *config.check.metric)
    commands = [] if config.command is None else [config.command.command]
    ask_for(run_id, scripts, commands, allowed=allow_scripts)
    return config
