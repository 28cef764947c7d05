"""What campaigns and their iterations state about each other."""

def _check_campaign(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
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
    # A run that was uploaded from the spool is named by its local id.
    children = shared.tracker.find(parent=info.id, tags={Tag.KIND: "iteration"})
    child_runs: dict[str, RunInfo] = {}
    for child in children:
        child_runs |= {child.id: child, child.tags.get(Tag.LOCAL_ID, child.id): child}
    for code, name in zip(table.verdicts, table.names):
        verdict_there = child_runs[name].verdict if name in child_runs else "no such run"
        facts.add(
            f"verdict of iteration {name}", {table_path: VERDICTS[code], "that run's tag": verdict_there or NOTHING}
        )
    numbers = {child_runs[name].tags.get(Tag.ITERATION) for name in table.names if name in child_runs}
    for child in children:  # one that was repeated, after its process had ended, does not count
        if child.status == "finished" and child.tags.get(Tag.ITERATION) not in numbers:
            facts.add(f"iteration {child.id}", {table_path: NOTHING, "the store": "a finished iteration"})
    config = DebugBuildConfig.from_json(run.read_bytes(Artifact.CAMPAIGN))
    facts.tag("config of the campaign", Tag.SPEC_SHA256, Artifact.CAMPAIGN, config.digest, NOTHING)
    materials = _check_given(run, config.build, shared, facts)
    values = {Artifact.CAMPAIGN: canonical_json(config.check), Artifact.MATERIALS: canonical_json(materials.check)}
    facts.add("how builds are evaluated", values)
    model = shared.model(run)
    facts.tag("model", Tag.MODEL_SHA256, "the content of the model file", model and model.sha256)
    if (file := campaigns.golden_file(run)) is not None:
        facts.tag("golden outputs", Tag.GOLDEN_SHA256, Artifact.GOLDEN, sha256_file(file), NOTHING)
        facts.add(
            "golden outputs", {f"iteration {child.id}": child.fact(Tag.GOLDEN_SHA256) or None for child in children}
        )
        golden_names = set(chain.from_iterable(RunResults.load(str(file))[0][1]))
        if model is not None and config.check.golden is None:
            names = sorted(output.name for output in model.outputs)
            facts.add("names of the golden outputs", {Artifact.GOLDEN: sorted(golden_names), "the model": names})


def _check_parent(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare an iteration with the table, the config and the golden outputs of its campaign."""
    info, parent = run.info, run.info.parent
    table = None if parent is None else shared.table(parent)
    name = next((n for n in (info.id, info.tags.get(Tag.LOCAL_ID, "")) if table is not None and n in table.names), None)
    if table is None or parent is None:
        return
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


