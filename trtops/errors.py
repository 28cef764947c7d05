"""Every error trtops raises on purpose, in one tree.

::

    TrtopsError
    ├── ModelError (ValueError)             the ONNX model itself
    │   ├── InvalidModelError               not ONNX, cut short, or inconsistent
    │   └── ExternalDataError               weights outside the file are missing, short or out of bounds
    ├── ConfigError (ValueError)            an option or a spec that cannot be meant
    ├── InputError (ValueError)             a feed that does not fit the model
    │   ├── MissingInputError (KeyError)
    │   ├── UnknownInputError (KeyError)
    │   ├── InputShapeError
    │   └── InputDtypeError
    ├── FormatError (ValueError)            a saved file that cannot be read: truncated, foreign, hostile, too new
    ├── ComparisonError                     a comparison that cannot be made (differing outputs are a result, not an error)
    │   ├── IterationMismatchError
    │   └── MetricUnavailableError          a metric was asked for that cannot be computed here
    ├── BackendError
    │   ├── BackendUnavailableError (ImportError)
    │   ├── UnsupportedFeatureError
    │   ├── EngineBuildError
    │   ├── EngineLoadError                 an engine's bytes do not load here
    │   ├── InferenceError
    │   ├── CalibrationError
    │   ├── TimingCacheError
    │   ├── TacticMismatchError             a replay was not followed; ``.layers`` lists where
    │   └── WorkerError                     a child process crashed, hung or ran out of memory
    ├── AuditError                      runs did not pass an audit; ``.result`` says which, and why
    ├── BuildListError                      builds of a model list failed; ``.result`` says which, and why
    ├── ReproductionError               a bundle would not repeat the verdict that it reports
    ├── SignatureError                  a signature is missing, or fits no key that is trusted
    └── TrackingError
        ├── StoreError                      the store cannot be used as it is
        │   ├── StoreVersionError           written by another MLflow
        │   └── StoreMovedError             its folder was moved; artifact addresses point elsewhere
        ├── RunNotFoundError (LookupError)
        ├── IncompleteRunError              no manifest, or a file that does not match it
        ├── LogError                        writing to the store failed for good
        │   └── NoRoomError                 the disk is full or read-only, or a quota is used up
        └── TrackingUnavailableError        the store did not answer; trying again can help

A message says what was found, what was expected and what to do. Only ``TrackingUnavailableError`` (``transient`` is
true) is worth a retry. Outputs that differ are a result (:mod:`trtops.comparator`), never an error.
"""

from __future__ import annotations

from collections.abc import Iterable

from trtops.masking import masked


class TrtopsError(Exception):
    """Root of the tree; catching it catches everything trtops raises on purpose.

    Attributes:
        transient: True if the same call can succeed later with nothing changed by the caller.
    """

    transient: bool = False

    def __str__(self) -> str:
        # KeyError, a base of some errors below, would print the repr of its argument. Messages quote what they were given,
        # and end up in logs, in stores and on screens.
        return masked(str(self.args[0])) if self.args else ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class ModelError(TrtopsError, ValueError):
    """An ONNX model cannot be used."""


class InvalidModelError(ModelError):
    """A file is not an ONNX model, is cut short, or contradicts itself."""


class ExternalDataError(ModelError):
    """Weights kept outside the model file are missing, too short, or outside the model's folder."""


class ConfigError(TrtopsError, ValueError):
    """An option has a value that cannot be meant, or options contradict each other."""


class InputError(TrtopsError, ValueError):
    """A feed does not fit the model's inputs."""


class MissingInputError(InputError, KeyError):
    """A feed lacks an input that the model needs."""


class UnknownInputError(InputError, KeyError):
    """A feed has a name that the model does not have."""


class InputShapeError(InputError):
    """A fed array has a shape that the model or the chosen optimization profile does not take."""


class InputDtypeError(InputError):
    """A fed array has another dtype than the model's input."""


class FormatError(TrtopsError, ValueError):
    """A saved file cannot be read: truncated, of another kind, hostile, or of a version newer than this code."""


class ComparisonError(TrtopsError):
    """A comparison cannot be made at all. Outputs that differ are a result, not an error."""


class IterationMismatchError(ComparisonError):
    """Two runs to be compared have different numbers of iterations."""


class MetricUnavailableError(ComparisonError):
    """A metric was asked for that an output does not have, or that cannot be computed here; it never counts as passed."""


class BackendError(TrtopsError):
    """A back end (ONNX Runtime, TensorRT) failed."""


class BackendUnavailableError(BackendError, ImportError):
    """A back end's library is not installed, or cannot be used here."""


class UnsupportedFeatureError(BackendError):
    """The back end's release does not have what was asked for; the message says which has, and what to do."""


class EngineBuildError(BackendError):
    """An engine could not be built; the message carries the builder's last error lines."""


class EngineLoadError(BackendError):
    """An engine's bytes are damaged, or were built for another release or device."""


class InferenceError(BackendError):
    """An inference failed inside the back end."""


class CalibrationError(BackendError):
    """INT8 calibration failed: no data, bad data, or a cache that does not fit the model.

    Attributes:
        partial: What had been collected when the data failed half-way, as a ``trtops.calibration.CalibrationCache``
            that says it is not complete; None if there was nothing.
        missing: Names of the tensors that a cache lacks, where that is what is wrong.
    """

    def __init__(self, message: str, *, partial: object = None, missing: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.partial = partial
        self.missing = tuple(missing)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self),), {"partial": self.partial, "missing": self.missing}


class TimingCacheError(BackendError):
    """A timing cache cannot be used: damaged, or made by another device or release."""


class TacticMismatchError(BackendError):
    """A tactic replay was not followed.

    Attributes:
        layers: Names of the layers that got another tactic than the record says, in the record's order.
    """

    def __init__(self, message: str, layers: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.layers = tuple(layers)

    def __reduce__(self) -> tuple[type[TacticMismatchError], tuple[str, tuple[str, ...]]]:
        return type(self), (str(self), self.layers)


class WorkerError(BackendError):
    """A child process crashed, hung or ran out of memory; the message names its exit signal and last log lines.

    Attributes:
        timed_out: Whether it was killed because its time was up.
    """

    timed_out = False


class AuditError(TrtopsError):
    """Runs did not pass an audit. Raised by flows, whose state has to say so; the op returns its result in any case.

    Attributes:
        result: What was found (:class:`trtops.ops.AuditResult`).
    """

    def __init__(self, message: str, result: object = None) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[type[AuditError], tuple[str, object]]:
        return type(self), (str(self), self.result)


class BuildListError(TrtopsError):
    """Builds of a model list failed. Raised by flows, whose state has to say so; the op returns its result in any case.

    Attributes:
        result: What became of each build (:class:`trtops.ops.engines.build_list.BuildListResult`).
    """

    def __init__(self, message: str, result: object = None) -> None:
        super().__init__(message)
        self.result = result

    def __reduce__(self) -> tuple[type[BuildListError], tuple[str, object]]:
        return type(self), (str(self), self.result)


class ReproductionError(TrtopsError):
    """What is asked to be bundled does not show its verdict outside of trtops, or not without its weights."""


class SignatureError(TrtopsError):
    """A signature is missing, is of another key than those trusted, or was made over something else."""


class TrackingError(TrtopsError):
    """The experiment store failed."""


class StoreError(TrackingError):
    """The store cannot be used as it is."""


class StoreVersionError(StoreError):
    """The store was written by another MLflow release than the one installed."""


class StoreMovedError(StoreError):
    """The store's folder was moved: the artifact addresses inside it point elsewhere."""


class RunNotFoundError(TrackingError, LookupError):
    """No run has this id."""


class IncompleteRunError(TrackingError):
    """A run has no manifest, or holds a file that does not match it."""


class LogError(TrackingError):
    """Something could not be written to the store, and trying again would not help."""


class NoRoomError(LogError):
    """Nothing more can be written there: the disk is full or read-only, or a quota is used up."""


class TrackingUnavailableError(TrackingError):
    """The store did not answer in time. Trying again later can help."""

    transient = True


def near(name: str, known: Iterable[str]) -> str:
    """A hint to put behind a message about an unknown name.

    Args:
        name: The name that was not found.
        known: The names that exist.

    Returns:
        ``"Did you mean 'x'?"`` if one is close, else the names that exist, else an empty string.
    """
    names = list(dict.fromkeys(known))
    import difflib  # for messages alone

    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"Did you mean {close[0]!r}?"
    if not names:
        return ""
    shown = ", ".join(repr(n) for n in names[:12])
    return f"Known: {shown}{f' and {len(names) - 12} more' if len(names) > 12 else ''}."
