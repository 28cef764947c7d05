"""Names of all tags, metrics and artifacts, and how names and values fit into MLflow.

A metric's name is a tuple of texts, ``("error", "gpu_0/softmax:1", "max_abs")``. MLflow accepts keys of letters,
digits and ``_ - . : /`` and space, at most 250 characters long, that are also normal paths. :func:`metric_key`
encodes a name as such a key, and :func:`metric_name` decodes it:

* Parts are joined by ``/``, so that the UI groups charts by all parts but the last.
* Letters and digits of every script, ``_``, ``.`` and ``:`` are kept. ``--`` stands for a hyphen, ``-5b-`` for the
  character U+005B, ``-empty-`` for an empty part.

Keys and values that are too long are cut in the middle by :func:`shortened`. Further tags keep their whole text
(:func:`overflow_tags`), so that reading restores it.
"""

from __future__ import annotations

import math
import numbers
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeAlias, get_args

from trtops import errors
from trtops.record import Record, canonical_json, sha256, to_jsonable

MetricName: TypeAlias = tuple[str, ...]

SCHEMA_VERSION = 1
"""Raised when a name below changes its meaning."""

Kind: TypeAlias = Literal[
    "build", "compare", "debug_build", "iteration", "reduce", "diff_tactics", "calibrate", "sensitivity", "accuracy",
    "precision", "proof", "bisect", "promote", "deny", "noise", "build_list", "gate", "gate_matrix",
    "audit", "triage", "triage_step", "engine_diff",
]  # fmt: skip
"""The kinds of work. A campaign is a ``debug_build``, and each of its child runs an ``iteration``."""

KINDS: tuple[Kind, ...] = get_args(Kind)

MAX_KEY = 250
MAX_PARAM = 6000
MAX_TAG = 8000
MAX_TEXT = 1 << 16
"""Longest param or tag value in characters; longer texts belong in artifacts."""


class Tag:
    """Names of tags, by which runs are filtered."""

    KIND = "trtops.kind"
    VERDICT = "trtops.verdict"
    SCHEMA = "trtops.schema"
    ERROR = "trtops.error"
    OWNER = "trtops.owner"
    HEARTBEAT = "trtops.heartbeat"  # time of the owner's last heartbeat, in seconds since the epoch
    HOST = "trtops.host"
    LOCAL_ID = "trtops.local_id"  # id made by the run's own process (trtops.tracking.ids)
    MODEL_SHA256 = "trtops.model.sha256"
    MODEL_PATH = "trtops.model.path"
    CRASHED = "trtops.crashed"  # settings that crashed the builder, as a JSON list
    CRASHED_IN = "trtops.crashed_in"  # digest of model, release and device (trtops.tracking.builds)
    SKIPPED = "trtops.skipped"  # settings that the builder had no time to try, as a JSON list
    SPEC_SHA256 = "trtops.spec.sha256"
    ENGINE_SHA256 = "trtops.engine.sha256"
    BUILD_KEY = "trtops.build_key"  # equal for interchangeable builds (trtops.tracking.builds.build_key)
    REUSED_FROM = "trtops.reused_from"  # id of the run that has the engine, if it was not built
    BACKEND = "trtops.backend"
    BACKEND_VERSION = "trtops.backend.version"
    DEVICE = "trtops.device"
    DEVICE_SHA256 = "trtops.device.sha256"
    ENVIRONMENT_SHA256 = "trtops.environment.sha256"
    DEVICE_STATE = "trtops.device."  # prefix: clocks of the device and its other processes during the build
    COMPUTE_CAPABILITY = "trtops.compute_capability"
    DRIVER = "trtops.driver"
    CUDA = "trtops.cuda"
    GIT_COMMIT = "trtops.git_commit"
    PREFECT_FLOW_RUN = "trtops.prefect_flow_run_id"
    DATA_SHA256 = "trtops.data.sha256"
    ITERATION = "trtops.iteration"  # number from 0; a killed run shares it with the run that repeated it
    VARIED = "trtops.varied"  # the varied settings of an iteration, as JSON pairs
    BAD_IN = "trtops.bad_in"  # the bad part of a bad build: outputs, precision, or both separated by a space
    GOLDEN_SHA256 = "trtops.golden.sha256"  # digest of the golden outputs of a running campaign
    WORST_OUTPUT = "trtops.worst_output"  # the output with the largest error relative to its scale
    ATTRIBUTION = "trtops.attribution"  # the cause of an engine's error (trtops.ops.evaluation.attribution)
    HEADLINE = "trtops.headline"  # the outcome in a few words, for tables of runs
    REGISTERED_PATH = "trtops.path"  # path of a registered version's artifact
    TRIAL = "trtops.trial"  # swap of a proof: in (suspect into a good build) or out (of a bad one)
    PROOF = "trtops.proof"  # confirmed, refuted or not isolable
    EVIDENCE = "trtops.evidence"  # id of the run that is the reason for a denied tactic or a promotion
    PARDONED = "trtops.pardoned"  # true for a revoked entry of the deny-list
    FAULT = "trtops.fault"  # the kind of fault that triage found
    GATE = "trtops.gate"  # accept, refuse or measure more
    MANIFEST_SHA256 = "trtops.manifest.sha256"  # digest of the original manifest, so that changes show
    DIGESTS = "trtops.digests"  # digests of the artifacts by path, as JSON
    LISTED = "trtops.listed"  # equal for equal builds of a model list
    TABLES = "mlflow.loggedArtifacts"  # artifacts that the UI shows as tables (trtops.tracking.tables)
    NOTE = "mlflow.note.content"  # Markdown on the run's page


class Metric:
    """Names of metrics as tuples, and first parts of families of metrics as texts."""

    BUILD_SECONDS = ("build", "seconds")
    ENGINE_BYTES = ("build", "engine_bytes")
    ENGINE_LAYERS = ("build", "layers")
    KERNELS_LOWERED = ("build", "kernels_lowered")  # share of the kernels that compute in the requested precision
    EMULATED_OVERFLOWS = ("emulated", "overflows")  # tensors that overflow in emulated 16 bit
    ATTRIBUTION = "attribution"  # (ATTRIBUTION, "engine" | "precision" | "noise" | "builder"): relative errors
    TACTICS_COVERAGE = ("tactics", "coverage")
    TIMING_CACHE_HITS = ("timing_cache", "hits")
    TIMING_CACHE_MISSES = ("timing_cache", "misses")
    TIMING_CACHE_SAVED_SECONDS = ("timing_cache", "saved_seconds")
    LATENCY = "latency"  # (LATENCY, "p50_ms") and so on
    ERROR = "error"  # (ERROR, output, statistic), and the worst of all outputs: (ERROR, statistic)
    ERROR_LOG10 = "error_log10"  # decimal logarithms, since the UI's bars show two decimals
    ACCURACY = "accuracy"  # top-1 accuracy on labelled data
    ITERATIONS = "iterations"  # (ITERATIONS, verdict): number of iterations
    DIFF = "diff"
    BISECT = "bisect"
    NOISE = "noise"
    CALIBRATION = "calibration"
    SENSITIVITY = "sensitivity"
    REDUCE = "reduce"
    PRECISION = "precision"
    GATE = "gate"  # (GATE, "latency_ratio") and so on
    AUDIT = "audit"


class Artifact:
    """Paths of artifacts; folders end in ``/``."""

    ENGINE = "engine/"  # engine/engine<suffix>, with the back end's suffix
    ENGINE_OPTIONS = "engine/options.json"
    ENGINE_MLMODEL = "engine/MLmodel"  # makes the folder an MLflow model (trtops.tracking.pyfunc)
    MODEL = "model/"  # the ONNX file and its external data
    TACTICS = "tactics/replay.json"
    LAYERS = "tactics/layers.json"
    PRECISIONS = "tactics/precisions.json"  # the precision of each kernel, as a table
    TIMING_CACHE = "caches/timing.cache"
    CALIBRATION_CACHE = "caches/calibration.cache"
    CALIBRATION_JSON = "caches/calibration.json"
    CALIBRATION_PARTIAL = "caches/calibration.partial.json"  # the ranges before the data failed
    CALIBRATION_RANGES = "calibration/ranges.json"
    CALIBRATION_PICTURES = "calibration/"
    SENSITIVITY = "sensitivity/layers.json"
    SENSITIVITY_RESULT = "sensitivity/result.json"
    ACCURACY = "accuracy/results.json"
    ACCURACY_POLYGRAPHY = "accuracy/results.polygraphy.json"  # in Polygraphy's format
    ACCURACY_PLOTS = "accuracy/"
    CAMPAIGN = "debug_build.json"  # a campaign's config
    CAMPAIGN_TABLE = "tactics/campaign.table"  # all iterations in one file (trtops.tactics.table)
    GOLDEN = "golden/outputs.npz"
    DIFF = "tactics/diff.json"
    DIFF_PAGE = "tactics/diff.md"
    DIFF_PICTURE = "tactics/diff.png"
    PROOF = "tactics/proof.json"
    BISECTION = "tactics/bisection.json"
    BISECTION_PLAN = "tactics/bisection_plan.json"  # the start of a bisection
    DENIED = "tactics/denied.json"
    PROMOTION = "promotion.json"  # the result of a promotion before it is registered
    NOISE = "noise.json"
    REDUCE = "reduce/"  # smallest models that still fail
    REDUCE_RESULT = "reduce/result.json"
    REDUCE_STEPS = "reduce/steps.jsonl"
    PRECISION_RESULT = "precision/result.json"
    PRECISION_KEPT = "precision/exclude.txt"  # layers kept in higher precision, one name per line
    ACCURACY_RESULT = "accuracy/result.json"
    ACCURACY_TENSORS = "accuracy/tensors.json"
    ACCURACY_FINDINGS = "accuracy/findings.txt"
    TRIAGE = "triage/steps.json"  # questions and answers of a triage
    TRIAGE_PAGE = "triage/page.md"
    TRIAGE_FILES = "triage/"  # the smallest failing case and its bundle
    BUILD_LIST = "build_list.json"  # the outcome of each build of a model list
    BUILD_LIST_PAGE = "build_list.md"
    GATE = "gate/result.json"  # measurements and findings
    GATE_PAGE = "gate/page.md"
    GATE_TABLE = "gate/table.json"
    SPEC = "spec.json"
    ENVIRONMENT = "environment.json"
    MATERIALS = "materials.json"  # inputs of a build (trtops.tracking.materials)
    MATERIALS_FOLDER = "materials/"
    AUDIT_RESULT = "audit/result.json"
    AUDIT_PAGE = "audit/report.md"
    BUILD_LOG = "build.log"
    REPORT = "report/report.html"  # the run as a page (trtops.reports)
    REPORT_DATA = "report/report.json"  # its content, to draw it again
    NAMES = "outputs.json"  # metric keys and their name parts, where they differ
    MANIFEST = "manifest.json"
    SIGNATURE = "manifest.dsse.json"  # the signed manifest (trtops.system.signing), which does not name it


_PLAIN = re.compile(r"[\w.:]")
_TOKEN = re.compile(r"-(-|[0-9a-f]+-|empty-)")
_LEGAL = re.compile(r"[/\w.\- :]+")
_CUT = re.compile(r"-cut-([0-9a-f]{16})-")  # no encoded text contains this: 16 digits are more than any character has
_OVERFLOW = "trtops.long."
_TAIL = 60


def encode(part: str) -> str:
    """One part of a metric name as text that is legal anywhere in an MLflow key, of any length."""
    if not part:
        return "-empty-"
    # A leading dot could make a key that leaves its folder.
    head = "-2e-" if part[0] == "." else ""
    return head + "".join(
        c if _PLAIN.match(c) else "--" if c == "-" else f"-{ord(c):x}-" for c in (part[1:] if head else part)
    )


def decode(text: str) -> str:
    """The part that :func:`encode` made this text from.

    Raises:
        FormatError: If :func:`encode` makes no such text.
    """

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
    """A metric's name as an MLflow key: legal, at most 250 characters, different for different names.

    Raises:
        LogError: If the name has no parts.
    """
    return shortened(_encoded_name(name), MAX_KEY)


def metric_name(key: str, long: Mapping[str, str] | None = None) -> MetricName:
    """The name that :func:`metric_key` encoded.

    Args:
        key: The key.
        long: Whole texts of shortened ones, by digest (:func:`long_texts`).

    Raises:
        FormatError: If :func:`metric_key` makes no such key, or its whole text is missing.
    """
    return tuple(map(decode, restored(key, long or {}).split("/")))


def _encoded_name(name: MetricName) -> str:
    if not name:
        raise errors.LogError("A metric's name has no parts; expected one or more, such as ('build', 'seconds').")
    return "/".join(map(encode, name))


def key(text: str) -> str:
    """A tag's or param's name as an MLflow key: the name itself if MLflow accepts it."""
    return text if _is_legal(text) else "-" + shortened(encode(text), MAX_KEY - 1)


def name(stored: str, long: Mapping[str, str] | None = None) -> str:
    """The name that :func:`key` encoded; ``long`` as in :func:`metric_name`.

    Raises:
        FormatError: If :func:`key` makes no such key.
    """
    if not stored.startswith("-"):
        return stored
    found = decode(restored(stored[1:], long or {}))
    if key(found) != stored:
        raise errors.FormatError(f"{stored!r} is not an encoded name: {found!r} needs no encoding.")
    return found


def _is_legal(text: str) -> bool:
    """True if MLflow accepts a key as it is (mlflow.utils.validation), and it does not look like an encoded one."""
    return (
        _LEGAL.fullmatch(text) is not None
        and len(text) <= MAX_KEY
        and posixpath.normpath(text) == text
        and text != "."
        and not text.startswith(("..", "/", "-"))
    )


def shortened(text: str, limit: int) -> str:
    """A text of at most ``limit`` characters: of a longer one, the middle is replaced by its digest."""
    if len(text) <= limit:
        return text
    mark = f"-cut-{_short_digest(text)}-"
    tail = text[-min(_TAIL, limit - len(mark)) :]
    return text[: limit - len(mark) - len(tail)] + mark + tail


def overflow_tags(text: str, limit: int) -> dict[str, str]:
    """Tags that keep the whole of a text that :func:`shortened` cuts; none if it fits."""
    if len(text) <= limit:
        return {}
    starts = range(0, len(text), MAX_TAG)
    return {f"{_OVERFLOW}{_short_digest(text)}.{i}": text[at : at + MAX_TAG] for i, at in enumerate(starts)}


def name_overflow(name: MetricName) -> dict[str, str]:
    """The :func:`overflow_tags` of a metric's name."""
    return overflow_tags(_encoded_name(name), MAX_KEY)


def key_overflow(text: str) -> dict[str, str]:
    """The :func:`overflow_tags` of a tag's or param's name."""
    return {} if _is_legal(text) else overflow_tags(encode(text), MAX_KEY - 1)


def long_texts(tags: Mapping[str, str]) -> dict[str, str]:
    """The texts of all :func:`overflow_tags`, by digest; texts with a missing or changed piece are left out."""
    found: dict[str, dict[int, str]] = {}
    for tag, value in tags.items():
        if tag.startswith(_OVERFLOW):
            digest, _, index = tag[len(_OVERFLOW) :].partition(".")
            if index.isdecimal() and len(index) < 10:
                found.setdefault(digest, {})[int(index)] = value
    texts = {digest: "".join(text for _, text in sorted(parts.items())) for digest, parts in found.items()}
    return {digest: text for digest, text in texts.items() if _short_digest(text) == digest}


def restored(shown: str, long: Mapping[str, str]) -> str:
    """The text that :func:`shortened` was given; the same text if it was not cut or its whole is missing."""
    cut = _CUT.search(shown)
    whole = long.get(cut[1]) if cut else None
    return whole if whole is not None and shortened(whole, len(shown)) == shown else shown


def is_overflow(tag: str) -> bool:
    """True for a tag that keeps a part of a long text."""
    return tag.startswith(_OVERFLOW)


def check_value(what: str, text: str) -> None:
    """Refuse a param's or tag's value that is longer than :data:`MAX_TEXT`, or cannot be written as UTF-8.

    Raises:
        LogError: If it is one of these.
    """
    if len(text) > MAX_TEXT:
        raise errors.LogError(
            f"{what} has a value of {len(text)} characters; expected at most {MAX_TEXT}. Log it as an artifact."
        )
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise errors.LogError(f"{what} has a value that is not Unicode text ({exc.reason} at {exc.start}).") from None


def _short_digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass"))[:16]


def text(value: object) -> str:
    """A param's value as text: strings unchanged, numbers in full, everything else as JSON.

    Raises:
        LogError: If the value has no JSON form.
    """
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return str(int(value)) if isinstance(value, numbers.Integral) else repr(float(value))
    try:
        plain = to_jsonable(value)
    except TypeError as exc:
        raise errors.LogError(f"A param's value cannot be stored: {exc}. Expected a number, a text or JSON.") from None
    return plain if isinstance(plain, str) else canonical_json(plain)


def flat_params(value: Record | Mapping[str, object]) -> dict[str, str]:
    """A config as flat params, such as ``options.builder_level``. Lists become JSON."""

    def items(prefix: str, value: Mapping[str, object]) -> Iterator[tuple[str, str]]:
        for key, item in value.items():
            if isinstance(item, dict) and item:
                yield from items(f"{prefix}{key}.", item)
            else:
                yield f"{prefix}{key}", text(item)

    plain = to_jsonable(value)
    assert isinstance(plain, dict)
    return dict(items("", plain))


def number(name: MetricName, value: object) -> float:
    """A metric's value as a float.

    Raises:
        LogError: If it is not a number.
    """
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as exc:
        raise errors.LogError(f"Metric {name} has the value {value!r:.80}; expected a number ({exc}).") from None


def log10_twins(metrics: Mapping[MetricName, float]) -> dict[MetricName, float]:
    """Decimal logarithms of the positive, finite values among ``("error", output, statistic)``.

    Only for magnitudes (maximum, mean), not for counts: the UI shows 0.0004 as 0.00, and -3.4 as -3.40.
    """
    return {
        (Metric.ERROR_LOG10, *name[1:]): math.log10(value)
        for name, value in metrics.items()
        if name[0] == Metric.ERROR and 0 < value < math.inf
    }


def metric_names(names: Iterable[MetricName]) -> dict[str, list[str]]:
    """The content of :data:`Artifact.NAMES`: keys to parts, for each key that is not just the parts joined."""
    return {key: list(name) for name in names if (key := metric_key(name)) != "/".join(name)}


MAX_FLOAT = 1.7976931348623157e308


def stored_number(value: float) -> float:
    """A metric's value for MLflow, whose SQL store has no infinities: they become the largest floats."""
    return math.copysign(MAX_FLOAT, value) if math.isinf(value) else value


def read_number(value: float) -> float:
    """The value that :func:`stored_number` was given; the largest float itself is read as infinity."""
    return math.copysign(math.inf, value) if abs(value) == MAX_FLOAT else value
