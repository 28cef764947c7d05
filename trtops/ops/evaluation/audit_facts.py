"""What runs state about the evaluation of an engine: its data, its golden outputs, its numbers and its verdict."""

def _check_given(run: StoredRun, build: BuildConfig, shared: SharedReads, facts: Facts) -> Materials:
    """Compare check data and golden outputs with their digests in the materials, and return the materials."""
    path = Artifact.MATERIALS
    materials = (read_materials(run.read_bytes(path)) if path in run.manifest else None) or Materials(check={})
    listed = {entry.path for entry in run.manifest.artifacts if entry.path.startswith(Artifact.MATERIALS_FOLDER)}
    for unlisted_path in sorted(listed - {material.path for material in materials.inputs}):
        facts.wrong(unlisted_path, f"{path} does not list it")
    for material in materials.inputs:
        fact = f"{material.name} given"
        if material.name == "golden":
            facts.add(fact, {path: material.sha256, material.path: sha256_file(run.local_path(material.path))})
        elif material.name == "data" and material.path and shared.model(run) is not None:
            check = CheckConfig.from_dict(materials.check)
            facts.add(
                fact, {path: material.sha256, material.path: shared.data_digest(run, material.path, check, build)}
            )
    return materials


def _check_accuracy(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare metrics with the logged comparison, and the verdict with its numbers."""
    path = Artifact.ACCURACY
    evaluation = Evaluation.from_json(run.read_bytes(path))
    families = ("error", "latency", "accuracy", "self_check", "power")
    facts.metrics(evaluation_metrics(evaluation), path, families)
    outputs = {output.name for output in evaluation.report.outputs}
    if (model := shared.model(run)) is not None and not {tensor.name for tensor in model.outputs} <= outputs:
        facts.add("outputs", {path: sorted(outputs), "the model": sorted(tensor.name for tensor in model.outputs)})
    if run.info.kind in BUILDS and run.info.kind != "gate":  # the verdict of a gate depends on more than this
        facts.tag("verdict", Tag.VERDICT, path, evaluation.verdict)
        with contextlib.suppress(errors.ComparisonError):  # a tolerance that needs the arrays
            derived = evaluation.report.evaluate(evaluation.report.tolerances)
            facts.add("verdict", {f"the numbers in {path}": replace(evaluation, report=derived).verdict})


