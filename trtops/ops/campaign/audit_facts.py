"""What campaigns and their iterations state about each other."""

import contextlib
import json
from itertools import chain

from trtops import errors
from trtops.comparator.results import RunResults
from trtops.ops.campaign.config import DebugBuildConfig
from trtops.ops.campaign.debug_build import DebugBuildResult
from trtops.ops.evaluation.audit_facts import data_facts
from trtops.ops.facts import NOTHING, Facts, SharedReads
from trtops.record import canonical_json, digest, sha256_file
from trtops.spec import BuildSpec
from trtops.tactics.table import CampaignTable
from trtops.tracking import campaigns
from trtops.tracking.base import RunInfo, StoredRun
from trtops.tracking.schema import Artifact, Metric, Tag
from trtops.verdict import VERDICTS


def audit_facts(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare config, data and golden outputs of a campaign, its result and its iterations with its table."""
    info, table_path = run.info, Artifact.CAMPAIGN_TABLE
    table = CampaignTable.from_bytes(run.read_bytes(table_path))
    result = DebugBuildResult.from_json(run.read_bytes(Artifact.CAMPAIGN_RESULT))
    counts = {"good": result.good, "bad": result.bad, "error": result.errors, "unproven": result.unproven}
    for verdict, count in campaigns.counts(table).items():
        fact = f"iterations that are {verdict}"
        facts.metric(fact, (Metric.ITERATIONS, verdict), table_path, count)
        facts.add(fact, {Artifact.CAMPAIGN_RESULT: float(counts[verdict])})
    facts.tag("verdict", Tag.VERDICT, Artifact.CAMPAIGN_RESULT, result.verdict)
    children = shared.tracker.find(parent=info.id, tags={Tag.KIND: "iteration"})
    _compare_iterations(table, children, facts)
    # Compared as it was written: earlier releases wrote 0 for 0.0, and a config reads both as 0.0.
    stored_config = json.loads(run.read_bytes(Artifact.CAMPAIGN))
    config = DebugBuildConfig.from_dict(stored_config)
    facts.tag("config of the campaign", Tag.SPEC_SHA256, Artifact.CAMPAIGN, digest(stored_config), NOTHING)
    materials = data_facts(run, config.build, shared, facts)
    values = {
        Artifact.CAMPAIGN: canonical_json(stored_config["check"]),
        Artifact.MATERIALS: canonical_json(materials.check),
    }
    facts.add("how builds are evaluated", values)
    model = shared.model(run)
    facts.tag("model", Tag.MODEL_SHA256, "the content of the model file", model and model.sha256)
    if (file := campaigns.golden_file(run)) is not None:
        facts.tag("golden outputs", Tag.GOLDEN_SHA256, Artifact.GOLDEN, sha256_file(file), NOTHING)
        for child in children:
            facts.add("golden outputs", {f"iteration {child.id}": child.fact(Tag.GOLDEN_SHA256) or None})
        golden_names = set(chain.from_iterable(RunResults.load(str(file))[0][1]))
        if model is not None and config.check.golden is None:
            names = sorted(output.name for output in model.outputs)
            facts.add("names of the golden outputs", {Artifact.GOLDEN: sorted(golden_names), "the model": names})


def _compare_iterations(table: CampaignTable, children: list[RunInfo], facts: Facts) -> None:
    """Compare a campaign's table with the runs of its iterations."""
    # A run that was uploaded from the spool is named by its local id.
    runs: dict[str, RunInfo] = {}
    for child in children:
        runs |= {child.id: child, child.tags.get(Tag.LOCAL_ID, child.id): child}
    numbers = set()
    for code, name in zip(table.verdicts, table.names):
        verdict: str | None = "no such run"
        if name in runs:
            verdict = runs[name].verdict
            numbers.add(runs[name].tags.get(Tag.ITERATION))
        values = {Artifact.CAMPAIGN_TABLE: VERDICTS[code], "that run's tag": verdict or NOTHING}
        facts.add(f"verdict of iteration {name}", values)
    for child in children:  # one that was repeated, after its process had ended, does not count
        if child.status == "finished" and child.tags.get(Tag.ITERATION) not in numbers:
            values = {Artifact.CAMPAIGN_TABLE: NOTHING, "the store": "a finished iteration"}
            facts.add(f"iteration {child.id}", values)


def iteration_facts(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare an iteration with the table, the config and the golden outputs of its campaign."""
    info, parent = run.info, run.info.parent
    if parent is None:
        return
    table = shared.once(("table", parent), lambda: _finished_table(shared, parent))
    if table is None:
        return
    name = next((name for name in (info.id, info.tags.get(Tag.LOCAL_ID, "")) if name in table.names), None)
    verdict = "no such iteration" if name is None else VERDICTS[table.verdicts[table.names.index(name)]]
    if name is not None or info.tags.get(Tag.ITERATION) is not None:
        facts.tag("verdict", Tag.VERDICT, f"{Artifact.CAMPAIGN_TABLE} of run {parent}", verdict)
    campaign = shared.tracker.info(parent)
    for fact, tag in (("model", Tag.MODEL_SHA256), ("golden outputs", Tag.GOLDEN_SHA256)):
        if info.fact(tag):
            facts.tag(fact, tag, f"run {parent}", campaign.fact(tag) or NOTHING)
    config = campaigns.read_config(shared.tracker, campaign)
    if config is not None and Artifact.SPEC in run.manifest and info.tags.get(Tag.ITERATION, "").isdecimal():
        expected_build = DebugBuildConfig.from_json(config).build_of(int(info.tags[Tag.ITERATION]))
        built = BuildSpec.from_json(run.read_bytes(Artifact.SPEC)).config
        values = {Artifact.SPEC: built.digest, f"{Artifact.CAMPAIGN} of run {parent}": expected_build.digest}
        facts.add("config of the build", values)


def _finished_table(shared: SharedReads, campaign: str) -> CampaignTable | None:
    """The table of a finished campaign; None if it has no readable table."""
    with contextlib.suppress(errors.TrackingError, errors.FormatError, errors.ConfigError):
        if shared.tracker.info(campaign).status == "finished":
            return campaigns.load_table(shared.tracker, campaign)
    return None
