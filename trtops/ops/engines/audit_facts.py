"""What builds and calibrations state: spec, environment, model, engine, tactics, inputs and ranges."""

import json
from collections.abc import Callable, Iterable

from trtops import errors
from trtops.backend.onnxrt.ort_format import read_graph
from trtops.calibration.cache import CalibrationCache
from trtops.ops.evaluation.audit_facts import data_facts
from trtops.ops.facts import NOTHING, Facts, SharedReads
from trtops.record import canonical_json, sha256, to_jsonable
from trtops.spec import BuildSpec, Environment, Layer
from trtops.tactics.denied import DenyList
from trtops.tactics.record import TacticRecord
from trtops.tracking import builds, schema
from trtops.tracking.base import StoredRun
from trtops.tracking.schema import Artifact, Metric, Tag
from trtops.verdict import PASSED


def build_facts(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare spec, environment, model and engine of a build with tags, params and metrics."""
    info = run.info
    spec = BuildSpec.from_json(run.read_bytes(Artifact.SPEC))
    environment = Environment.from_json(run.read_bytes(Artifact.ENVIRONMENT))
    facts.tag("spec", Tag.SPEC_SHA256, Artifact.SPEC, spec.digest, NOTHING)
    facts.tag("model", Tag.MODEL_SHA256, Artifact.SPEC, spec.model_sha256)
    model = shared.model(run)
    facts.add("model", {"the content of the model file": model and model.sha256})
    key = builds.build_key(spec, environment)
    facts.tag("build key", Tag.BUILD_KEY, f"{Artifact.SPEC} and {Artifact.ENVIRONMENT}", key)
    facts.tag("back end", Tag.BACKEND, Artifact.ENVIRONMENT, environment.backend, NOTHING)
    for name, value in (schema.flat_params(spec.stated()) | builds.environment_params(environment)).items():
        source = Artifact.ENVIRONMENT if name.startswith("env.") else Artifact.SPEC
        facts.add(f"param {name}", {"the store's params": info.params.get(name) or NOTHING, source: value})
    stored = run.holder
    reused_from = None if stored is run else stored.info.id
    facts.tag("the run of the engine", Tag.REUSED_FROM, Artifact.REUSED, reused_from or NOTHING, NOTHING)
    # A build that reused an engine has no file of it; the earlier run has.
    if reused_from is not None:
        for tag in (Tag.MODEL_SHA256, Tag.SPEC_SHA256):
            facts.tag(tag, tag, f"run {reused_from}, whose engine it reused", stored.info.fact(tag))
        facts.add("build key", {f"tag of run {reused_from}": stored.info.tags.get(Tag.BUILD_KEY), "the spec": key})
    engine = builds.engine_entry(stored.manifest.original())
    if engine is None:
        # A gate also refuses candidates that cannot be built, and holds no engine then.
        if info.verdict in PASSED or (info.verdict == "bad" and info.kind != "gate"):
            facts.wrong("engine", f"the run is {info.verdict} and holds no engine")
        return
    manifest_name = Artifact.MANIFEST if reused_from is None else f"manifest of run {reused_from}"
    facts.tag("engine", Tag.ENGINE_SHA256, manifest_name, engine.sha256, NOTHING)
    facts.metric("size of the engine", Metric.ENGINE_BYTES, manifest_name, engine.size)
    _compare_materials(run, spec, environment, shared, facts)
    if engine.path in stored.manifest:
        try:
            _compare_engine(stored, engine.path, environment, shared, facts)
        except errors.IncompleteRunError as exc:
            if reused_from is not None:  # otherwise the file is already reported
                facts.wrong(f"engine of run {reused_from}", str(exc))


def _compare_engine(run: StoredRun, path: str, environment: Environment, shared: SharedReads, facts: Facts) -> None:
    """Compare an engine's bytes with its options, its layers with the logged ones, its interface with the model's."""
    build = builds.load_build(run)
    plan, options = build.engine.plan, build.engine.options
    stated = options.get("sha256")
    facts.add("engine", {path: build.engine.sha256, Artifact.ENGINE_OPTIONS: stated})
    if environment.backend != "onnxruntime" or options.get("format") == "ONNX":
        return  # only its GPU reads a TensorRT engine, and an ONNX file is optimized when it is loaded
    for name in ("providers", "intra_op_threads"):
        option = to_jsonable(getattr(build.spec.config.options, name, None))
        facts.add(f"{name} of the engine", {Artifact.SPEC: option, Artifact.ENGINE_OPTIONS: options.get(name)})
    try:
        graph = read_graph(plan)
        engine_layers = sorted((node.kernel, *_tensors(node.inputs, node.outputs)) for node in graph.nodes)
    except Exception as exc:  # the bytes are not those of an engine, and lead anywhere
        facts.wrong(path, f"it cannot be read as an engine of ONNX Runtime ({type(exc).__name__})")
        return
    logged_layers = sorted((layer.tactic or "", *_tensors(layer.inputs, layer.outputs)) for layer in build.layers)
    for layer in (*engine_layers, *logged_layers):
        if engine_layers.count(layer) != logged_layers.count(layer):
            facts.wrong("layers", f"{path} and {Artifact.LAYERS} differ in {layer[0]} that makes {layer[2]}")
            break
    if (model := shared.model(run)) is not None:
        for side, engine_names, model_tensors in (
            ("inputs", graph.inputs, model.inputs),
            ("outputs", graph.outputs, model.outputs),
        ):
            names = {entry.name for entry in model_tensors}
            # Weights of old models are inputs, too.
            compared_names = names & {*engine_names} if side == "inputs" else {*engine_names}
            facts.add(f"{side} of the engine", {path: sorted(compared_names), "the model": sorted(names)})


def _tensors(*names: Iterable[str]) -> tuple[list[str], ...]:
    return tuple([name for name in group if name] for group in names)


def tactic_facts(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the tactic record with layers, environment and metrics."""
    record = TacticRecord.from_json(run.read_bytes(Artifact.TACTICS))
    environment = Environment.from_json(run.read_bytes(Artifact.ENVIRONMENT))
    layers = [Layer.from_dict(fields) for fields in json.loads(run.read_bytes(Artifact.LAYERS))]
    for fact, name in (
        ("release that chose the tactics", "backend_version"),
        ("device of the tactics", "device_sha256"),
    ):
        facts.add(fact, {Artifact.TACTICS: getattr(record, name), Artifact.ENVIRONMENT: getattr(environment, name)})
    if record.mechanism == "onnxruntime":  # its layers and choices have the same names
        chosen = {choice.layer: choice.tactic for choice in record.choices}
        layer_tactics = {layer.name: layer.tactic for layer in layers}
        for name in sorted({*chosen, *layer_tactics}):
            values = {Artifact.TACTICS: chosen.get(name, NOTHING), Artifact.LAYERS: layer_tactics.get(name, NOTHING)}
            facts.add(f"tactic of {name}", values)


def _compare_materials(
    run: StoredRun, spec: BuildSpec, environment: Environment, shared: SharedReads, facts: Facts
) -> None:
    """Compare the inputs of the build with its spec."""
    materials = data_facts(run, spec.config, shared, facts)
    readers: dict[str, tuple[str | None, Callable[[bytes], str]]] = {
        "timing_cache": (spec.timing_cache_sha256, sha256),
        "replay": (spec.replay_sha256, lambda text: TacticRecord.from_json(text).digest),
        "denied": (spec.denied_sha256, lambda text: DenyList.from_json(text).here(environment).digest),
    }
    for name, (spec_sha256, read) in readers.items():
        material = materials.of(name)
        if material is not None and material.path:
            values = {Artifact.SPEC: spec_sha256 or NOTHING, material.path: read(run.read_bytes(material.path))}
            facts.add(f"{name} given", {**values, Artifact.MATERIALS: material.sha256})
    cache_material, path = materials.of("calibration_cache"), Artifact.CALIBRATION_CACHE
    if spec.config.calibrates and path in run and cache_material is not None:
        values = {path: sha256(run.read_bytes(path)), Artifact.MATERIALS: cache_material.sha256}
        values[cache_material.path] = sha256(run.read_bytes(cache_material.path))
        facts.add("calibration cache given", {Artifact.SPEC: spec.calibration_sha256 or NOTHING, **values})


def calibration_facts(run: StoredRun, shared: SharedReads, facts: Facts) -> None:
    """Compare the two forms of a calibration cache, its numbers and its data."""
    cache = CalibrationCache.from_bytes(run.read_bytes(Artifact.CALIBRATION_JSON))
    text = sha256(run.read_bytes(Artifact.CALIBRATION_CACHE))
    facts.add("ranges", {Artifact.CALIBRATION_CACHE: text, Artifact.CALIBRATION_JSON: sha256(cache.to_tensorrt())})
    facts.tag("data", Tag.DATA_SHA256, Artifact.CALIBRATION_JSON, cache.data_sha256 or "")
    facts.tag("model", Tag.MODEL_SHA256, Artifact.CALIBRATION_JSON, cache.model_sha256)
    for name, value in (("samples", cache.samples), ("feeds", cache.feeds), ("tensors", len(cache))):
        facts.metric(f"number of {name}", (Metric.CALIBRATION, name), Artifact.CALIBRATION_JSON, value)
    if Artifact.CALIBRATION_RANGES in run.manifest:
        rows = json.loads(run.read_bytes(Artifact.CALIBRATION_RANGES))["data"]
        for source, pairs in (
            (Artifact.CALIBRATION_RANGES, [[row[0], row[1]] for row in rows]),
            (Artifact.CALIBRATION_JSON, [[tensor_range.name, tensor_range.amax] for tensor_range in cache.ranges]),
        ):
            facts.add("largest values", {source: sha256(canonical_json(pairs).encode())})
