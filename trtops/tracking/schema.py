"""Names of all tags, metrics and artifacts, and how names and values fit into MLflow.

A metric's name is a tuple of texts, ``("error", "gpu_0/softmax:1", "max_abs")``. MLflow accepts keys of letters,
digits and ``_ - . : /`` and space, at most 250 characters long, that are also normal paths. :func:`metric_key`
encodes a name as such a key, and :func:`metric_name` decodes it:

* Parts are joined by ``/``, so that the UI groups charts by all parts but the last.
* Letters and digits of every script, ``_``, ``.`` and ``:`` are kept. ``--`` stands for a hyphen, ``-5b-`` for the
  character U+005B, ``-empty-`` for an empty part.

Longer names are logged as :func:`fitting` shortens them. Tags and params are named by the code, so they need no
encoding; MLflow's rules for them are checked (:func:`check_text`).
"""

import math
import numbers
import posixpath
import re
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from trtops import errors
from trtops.record import Record, canonical_json, sha256, to_jsonable

MetricName: TypeAlias = tuple[str, ...]

# The kinds of work. A campaign is a debug_build, and each of its child runs an iteration.
Kind: TypeAlias = Literal[
    "build", "compare", "debug_build", "iteration", "reduce", "diff_tactics", "calibrate", "sensitivity", "accuracy",
    "precision", "proof", "bisect", "promote", "deny", "build_list", "gate", "gate_builds", "gate_matrix",
    "audit", "triage", "triage_step", "engine_diff", "evaluate", "choose",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)

# MLflow's limits in characters.
MAX_KEY = 250
MAX_PARAM = 6000
MAX_TAG = 8000
DATA_DIGITS = 16  # of the digest of data, in params and in MLflow's datasets


class Tag:
    """Names of tags, for filtering runs."""

    KIND = "trtops.kind"
    VERDICT = "trtops.verdict"
    ERROR = "trtops.error"
    OWNER = "trtops.owner"
    LOCAL_ID = "trtops.local_id"  # id made by the run's own process (trtops.tracking.records)
    MODEL_SHA256 = "trtops.model.sha256"
    MODEL_PATH = "trtops.model.path"
    CRASHED_IN = "trtops.crashed_in"  # digest of model, release and device (trtops.tracking.builds)
    SPEC_SHA256 = "trtops.spec.sha256"
    ENGINE_SHA256 = "trtops.engine.sha256"
    ENGINE_PATH = "trtops.engine.path"  # of a registered engine, among its run's artifacts
    BUILD_KEY = "trtops.build_key"  # equal for interchangeable builds (trtops.tracking.builds.build_key)
    REUSED_FROM = "trtops.reused_from"  # id of the run that has the engine, if it was not built
    COMPUTES_IN = "trtops.computes_in"  # of a registered engine: what its kernels compute in, such as FP32 (not FP16)
    BACKEND = "trtops.backend"
    BACKEND_VERSION = "trtops.backend.version"
    DEVICE = "trtops.device"
    DEVICE_SHA256 = "trtops.device.sha256"
    ENVIRONMENT_SHA256 = "trtops.environment.sha256"
    COMPUTE_CAPABILITY = "trtops.compute_capability"
    DRIVER = "trtops.driver"
    CUDA = "trtops.cuda"
    GIT_COMMIT = "trtops.git_commit"
    PREFECT_FLOW_RUN = "trtops.prefect_flow_run_id"
    PREFECT_URL = "trtops.prefect_flow_run_url"
    DATA_SHA256 = "trtops.data.sha256"
    ITERATION = "trtops.iteration"  # number from 0; a killed run shares it with the run that repeated it
    BAD_IN = "trtops.bad_in"  # the bad part of a bad build: outputs, precision, or both separated by a space
    GOLDEN_SHA256 = "trtops.golden.sha256"  # digest of the golden outputs of a running campaign
    HEADLINE = "trtops.headline"  # the outcome in a few words, for tables of runs
    TRIAL = "trtops.trial"  # swap of a proof: in (suspect into a good build) or out (of a bad one)
    PROOF = "trtops.proof"  # confirmed, refuted or not isolable
    EVIDENCE = "trtops.evidence"  # id of the run that is the reason for a denied tactic or a promotion
    ACCEPTED_BY = "trtops.accepted_by"  # of a registered engine: the user that MLflow's server authenticated
    PARDONED = "trtops.pardoned"  # true for a revoked entry of the deny-list
    FAULT = "trtops.fault"  # the kind of fault that triage found
    GATE = "trtops.gate"  # accept, refuse, undecided or error
    MANIFEST_SHA256 = "trtops.manifest.sha256"  # of the original manifest, which has the digests of all artifacts
    LISTED = "trtops.listed"  # model, release, environment and options of a listed build
    LISTED_AS = "trtops.listed_as"  # digest of its machine, path and options
    TRANSIENT = "trtops.transient"  # true if a run failed for no fault of its model (trtops.errors.is_transient)
    TABLES = "mlflow.loggedArtifacts"  # artifacts that the UI shows as tables
    NOTE = "mlflow.note.content"  # Markdown on the run's page
    USER = "mlflow.user"  # set by MLflow


# Params that state what is a tag of registered engines and of some runs: people compare them, nothing filters by them.
# A run has at most 12 tags of ours, of at most 100 characters; only errors are longer.
AS_PARAM = {
    Tag.MODEL_PATH: "model_path",
    Tag.SPEC_SHA256: "spec_sha256",
    Tag.GOLDEN_SHA256: "golden_sha256",
    Tag.ENVIRONMENT_SHA256: "env.sha256",
    Tag.BACKEND_VERSION: "env.backend_version",
    Tag.DEVICE: "env.device",
    Tag.DEVICE_SHA256: "env.device_sha256",
    Tag.COMPUTE_CAPABILITY: "env.compute_capability",
    Tag.DRIVER: "env.driver",
    Tag.CUDA: "env.cuda",
    Tag.GIT_COMMIT: "env.git_commit",
    Tag.LISTED: "listed",
    Tag.PREFECT_URL: "prefect_url",
}
MAX_SHORT_TAG = 100
CALIBRATED_ON = "calibration_sha256"  # param: digest of the data or cache that an 8-bit build was calibrated with
DEVICE_STATE = "device_state."  # params: clocks of the device and its other processes during the build


class Metric:
    """Names of metrics as tuples, and first parts of families of metrics as texts."""

    BUILD_SECONDS = ("build", "seconds")
    ENGINE_BYTES = ("build", "engine_bytes")
    KERNELS_LOWERED = ("build", "kernels_lowered")  # share of the kernels that compute in the requested precision
    POWER_SEEN = ("power", "seen")  # share of the faults planted into golden outputs that a comparison reports
    SELF_CHECK_BROKEN = ("self_check", "broken")  # number of relations that the engine breaks
    LATENCY = "latency"  # (LATENCY, "p50_ms") and so on
    ERROR = "error"  # (ERROR, statistic) of the worst output, and (ERROR, output, "max_abs")
    ACCURACY = "accuracy"  # (ACCURACY, metric) of a task, such as top1, and (ACCURACY, "golden_" + metric) of the model
    LOSS = "loss"  # (LOSS, metric, "loss", "low" or "high"): what the engine loses of a metric, and its interval
    ITERATIONS = "iterations"  # (ITERATIONS, verdict): number of iterations
    DIFF = "diff"
    BISECT = "bisect"
    CALIBRATION = "calibration"
    SENSITIVITY = "sensitivity"
    REDUCE = "reduce"
    PRECISION = "precision"
    GATE = "gate"  # (GATE, "latency_ratio") and so on
    AUDIT = "audit"  # (AUDIT, "passed") is 1 or 0, of each engine and of all


class Artifact:
    """Paths of artifacts; folders end in ``/``."""

    ENGINE = "engine/"  # engine/engine<suffix>, with the back end's suffix
    ENGINE_OPTIONS = "engine/options.json"
    MLMODEL = "MLmodel"  # how MLflow loads the engine (trtops.tracking.mlflow.flavor)
    REUSED = "engine/reused.json"  # instead of a build's files: the run that has them, and their digests
    MODEL = "model/"  # the ONNX file and its external data
    TACTICS = "tactics/replay.json"
    LAYERS = "tactics/layers.json"
    LEFT_OUT = "tactics/left_out.json"  # choices that the deny-list excluded from the build, each with its reason
    QUANTIZATION = "tactics/quantization.json"  # the layers that got Q/DQ nodes, and those excluded, by rule
    PRECISIONS = "tactics/precisions.json"  # the precision of each kernel, as a table
    TIMING_CACHE = "caches/timing.cache"
    TIMING_CACHE_USE = "caches/timing_use.json"  # timings that the build found in a cache, added, and the time saved
    CALIBRATION_CACHE = "caches/calibration.cache"
    CALIBRATION_JSON = "caches/calibration.json"
    CALIBRATION_PARTIAL = "caches/calibration.partial.json"  # the ranges before the data failed
    CALIBRATION_ALGORITHMS = "calibration/algorithms.json"  # the error of each, if they were compared
    CALIBRATION_RANGES = "calibration/ranges.json"
    SENSITIVITY = "sensitivity/layers.json"
    SENSITIVITY_RESULT = "sensitivity/result.json"
    ACCURACY = "accuracy/results.json"
    ACCURACY_POLYGRAPHY = "accuracy/results.polygraphy.json"  # in Polygraphy's format
    ACCURACY_PLOTS = "accuracy/"
    CAMPAIGN = "debug_build.json"  # a campaign's config
    CAMPAIGN_RESULT = "debug_build_result.json"
    CAMPAIGN_TABLE = "tactics/campaign.table"  # all iterations in one file (trtops.tactics.table)
    GOLDEN = "golden/outputs.npz"
    DIFF = "tactics/diff.json"
    DIFF_PAGE = "tactics/diff.md"
    PROOF = "tactics/proof.json"
    BISECTION = "tactics/bisection.json"
    BISECTION_PLAN = "tactics/bisection_plan.json"  # the start of a bisection
    DENIED = "tactics/denied.json"
    REDUCE = "reduce/"  # smallest models that still fail
    REDUCE_RESULT = "reduce/result.json"
    REDUCE_STEPS = "reduce/steps.jsonl"
    PRECISION_RESULT = "precision/result.json"
    PRECISION_KEPT = "precision/exclude.txt"  # layers kept in higher precision, one name per line
    ACCURACY_RESULT = "accuracy/result.json"
    ACCURACY_TENSORS = "accuracy/tensors.json"
    CHOOSE = "choose/result.json"  # candidates of a choice, also of an unfinished one
    CHOOSE_LIST = "choose/list.json"  # the choices of several models
    TRIAGE = "triage/steps.json"  # questions and answers of a triage
    TRIAGE_FILES = "triage/"  # the smallest failing case and its bundle
    BUILD_LIST = "build_list.json"  # the outcome of each build of a model list
    GATE = "gate/result.json"  # measurements and findings
    GATE_TABLE = "gate/table.json"
    SPEC = "spec.json"
    ENVIRONMENT = "environment.json"
    MATERIALS = "materials.json"  # inputs of a build (trtops.tracking.builds)
    MATERIALS_FOLDER = "materials/"
    AUDIT_RESULT = "audit/result.json"
    BUILD_LOG = "build.log"
    CRASHED = "crashed.json"  # settings that crashed the builder
    TIMING = "timing.json"  # wall and CPU seconds of the op's steps
    REPORT = "report/report.html"  # the run as a page (trtops.reports)
    REPORT_DATA = "report/report.json"  # its content, to draw it again
    MANIFEST = "manifest.json"
    SIGNATURE = "manifest.sig"  # of all files (trtops.system.signing); the manifest does not name it


# The files of a build, or the folders that hold them. A run that reuses a build has none of them.
BUILD_FILES = (
    Artifact.ENGINE, Artifact.MODEL, Artifact.TACTICS, Artifact.LAYERS, Artifact.LEFT_OUT, Artifact.TIMING_CACHE,
    Artifact.TIMING_CACHE_USE, Artifact.CALIBRATION_CACHE, Artifact.BUILD_LOG, Artifact.MLMODEL,
)  # fmt: skip
# Those that MLflow's logged model of the engine has as well.
LOGGED_MODEL_FILES = (
    Artifact.MLMODEL, Artifact.MANIFEST, Artifact.ENGINE, Artifact.TACTICS, "caches/", Artifact.SPEC,
    Artifact.ENVIRONMENT,
)  # fmt: skip

_PLAIN = re.compile(r"[\w.:]")
_TOKEN = re.compile(r"-(-|[0-9a-f]+-|empty-)")
_LEGAL_KEY = re.compile(r"[/\w.\- :]+")


def encode(part: str) -> str:
    """One part of a metric name as text of any length, legal anywhere in an MLflow key."""
    if not part:
        return "-empty-"
    # A leading dot could make a key that leaves its folder.
    head = "-2e-" if part[0] == "." else ""
    return head + "".join(
        c if _PLAIN.match(c) else "--" if c == "-" else f"-{ord(c):x}-" for c in (part[1:] if head else part)
    )


def decode(text: str) -> str:
    """The inverse of :func:`encode`."""

    def plain(match: re.Match[str]) -> str:
        token = match[1].rstrip("-")
        return "-" if not token else "" if token == "empty" else chr(int(token, 16))

    rest = _TOKEN.sub("", text)
    try:
        part = _TOKEN.sub(plain, text)
    except (ValueError, OverflowError):
        rest = "-"
    if "-" in rest or not text:
        raise errors.FormatError(f"{text!r} is not an encoded name part: found a lone '-', expected '--' or '-5b-'.")
    return part


def metric_key(name: MetricName) -> str:
    """A metric's name as an MLflow key, different for different names; too long unless the name is :func:`fitting`."""
    if not name:
        raise errors.LogError("A metric's name has no parts; expected one or more, such as ('build', 'seconds').")
    return "/".join(map(encode, name))


def metric_name(key: str) -> MetricName:
    """The inverse of :func:`metric_key`."""
    return tuple(map(decode, key.split("/")))


def fitting(name: MetricName) -> MetricName:
    """A name with a key of at most 250 characters: long parts become their ends with a digest between them."""
    fitted = name
    # One character may take eight in a key, so short names may need cuts as well.
    for end in (100, 40, 8):
        if len(metric_key(fitted)) <= MAX_KEY:
            return fitted
        fitted = tuple(
            part if len(part) <= 2 * end + 18 else f"{part[:end]}~{_short_digest(part)}~{part[-end:]}" for part in name
        )
    return fitted if len(metric_key(fitted)) <= MAX_KEY else (_short_digest("/".join(map(encode, name))),)


def _short_digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass"))[:16]


def check_text(label: str, key: str, value: str) -> None:
    """Reject a param or tag refused or changed by MLflow or a database."""
    if _LEGAL_KEY.fullmatch(key) is None or len(key) > MAX_KEY or posixpath.normpath(key) != key or key[0] in "./":
        raise errors.LogError(
            f"{label} {key[:300]!r} has a name that MLflow refuses: expected at most {MAX_KEY} letters, digits and "
            "'_-.: /', as a relative path."
        )
    if len(value) > MAX_TAG:
        raise errors.LogError(
            f"{label} {key!r} has a value of {len(value)} characters; expected at most {MAX_TAG}. Log it as an "
            "artifact."
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise errors.LogError(
            f"{label} {key!r} has a value that is not Unicode text ({exc.reason} at {exc.start})."
        ) from None


def text(value: object) -> str:
    """A param's value as text: strings unchanged, numbers in full, everything else as JSON."""
    # Longer texts are cut: specs and configs are artifacts, and params are only for comparing runs.
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return str(int(value)) if isinstance(value, numbers.Integral) else repr(float(value))
    try:
        plain = to_jsonable(value)
    except TypeError as exc:
        raise errors.LogError(f"A param's value cannot be stored: {exc}. Expected a number, a text or JSON.") from None
    param_text = plain if isinstance(plain, str) else canonical_json(plain)
    if len(param_text) <= MAX_PARAM:
        return param_text
    return f"{param_text[: MAX_PARAM - 100]}... ({len(param_text)} characters, digest {_short_digest(param_text)})"


def flat_params(value: Record | Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Options as flat params, such as ``options.builder_level``, without unset ones: None or empty.

    Lists become JSON.
    """
    params: dict[str, str] = {}
    for key, item in (value.to_dict() if isinstance(value, Record) else value).items():
        if isinstance(item, (Record, Mapping)):
            params |= flat_params(item, f"{prefix}{key}.")
        elif item is not None and item != "" and (not isinstance(item, (tuple, list)) or item):
            params[f"{prefix}{key}"] = text(item)
    return params


def number(name: MetricName, value: object) -> float:
    """A metric's value as a float."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as exc:
        raise errors.LogError(f"Metric {name} has the value {value!r:.80}; expected a number ({exc}).") from None


def family(name: str, **numbers: float) -> dict[MetricName, float]:
    """Metrics of one family, such as ``reduce/checks``."""
    return {(name, part): float(number) for part, number in numbers.items()}


# MLflow's SQL store has no infinities, so they are stored as the largest floats.
MAX_FLOAT = 1.7976931348623157e308


def stored_number(value: float) -> float:
    """A metric's value for MLflow."""
    return math.copysign(MAX_FLOAT, value) if math.isinf(value) else value


def read_number(value: float) -> float:
    """The inverse of :func:`stored_number`; the largest float itself is read as infinity."""
    return math.copysign(math.inf, value) if abs(value) == MAX_FLOAT else value
