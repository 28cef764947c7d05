"""Every error raised on purpose by trtops; all derive from :class:`TrtopsError`.

A message names the thing, what was found, what was expected and what to do. Outputs that differ are a result
(:mod:`trtops.comparator`), never an error.
"""

import errno
import os
from collections.abc import Collection, Iterable

from trtops.system.masking import masked


class TrtopsError(Exception):
    """Base of all errors of trtops. If ``transient``, the same call can succeed later. Details become attributes."""

    transient = False

    def __init__(self, message: object = "", **details: object) -> None:
        super().__init__(message)
        vars(self).update(details)

    def __str__(self) -> str:
        # Messages quote their input and end up in logs and stores, so secrets are masked.
        return masked(str(self.args[0]))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class InvalidModelError(TrtopsError, ValueError):
    """An ONNX model cannot be used: it is truncated, contradicts itself, or lacks weights in its folder."""


class ConfigError(TrtopsError, ValueError):
    """An option has an invalid value, or options contradict each other."""


class InputError(TrtopsError, ValueError):
    """A feed does not fit the model's inputs: a name is missing or not known, or an array does not fit."""


class ScriptError(TrtopsError):
    """A script or check command of the user failed by itself, which says nothing about a model; its line is named."""


class FormatError(TrtopsError, ValueError):
    """A saved file cannot be read: truncated, of another kind, hostile, or of a newer version."""


class ComparisonError(TrtopsError):
    """A comparison cannot be made: iterations do not match, or a metric cannot be computed here."""


class BackendError(TrtopsError):
    """A back end (ONNX Runtime, TensorRT) failed."""


class BackendUnavailableError(BackendError, ImportError):
    """A library is not installed, or cannot be used here."""


class UnsupportedFeatureError(BackendError):
    """The back end's release does not support the request; the message names releases with support."""


class EngineBuildError(BackendError):
    """An engine could not be built; the message has the builder's last error lines."""


class EngineLoadError(BackendError):
    """An engine's bytes are damaged, or were built for another release or device."""


class InferenceError(BackendError):
    """An inference failed inside the back end."""


class CalibrationError(BackendError):
    """INT8 calibration failed: no data, bad data, or a cache of another model.

    ``partial`` is what was collected before the data failed, or None: an incomplete ``CalibrationCache`` from the op, a
    ``trtops.backend.onnxrt.calibration.Collected`` from the function.
    """

    partial: object = None


class TimingCacheError(BackendError):
    """A timing cache is damaged, or was made by another device or release."""


class TacticMismatchError(BackendError):
    """A tactic replay was not followed by ``layers`` (in the record's order)."""

    layers: tuple[str, ...] = ()


class WorkerError(BackendError):
    """A child process crashed, hung (``timed_out``) or ran out of memory; the message has its last log lines.

    ``doing`` is what native code computed in it; empty if that is not known.
    """

    timed_out = False
    doing = ""


class SignatureError(TrtopsError):
    """A signature is missing, is of an untrusted key, or signs something else."""


class TrackingError(TrtopsError):
    """The tracking store failed."""


class StoreError(TrackingError):
    """The store cannot be used as it is: it is missing, was moved, or is of another MLflow release."""


class AccessDeniedError(TrackingError):
    """The server refused a request, since the account lacks a permission or its password is wrong."""


class RunNotFoundError(TrackingError, LookupError):
    """No run has this id."""


class IncompleteRunError(TrackingError):
    """A run has no manifest, or a file not matching it."""


class LogError(TrackingError):
    """Writing to the store failed, and trying again would not help."""


class NoRoomError(LogError):
    """The disk is full or read-only, or a quota is used up."""


class TrackingUnavailableError(TrackingError):
    """The store did not answer in time; trying again later can help."""

    transient = True


def is_transient(error: object) -> bool:
    """Whether an error is of the machine or the store, such as a full disk, and says nothing of the model."""
    full = any(os.strerror(number) in str(error) for number in (errno.ENOSPC, errno.EDQUOT, errno.EROFS))
    return full or isinstance(error, (TrackingError, ConnectionError))


def check_known(name: str, known_names: Collection[str], refusal: str) -> None:
    """Raise ConfigError unless a name is known, such as "The model has no input 'x'. Did you mean 'y'?"."""
    if name not in known_names:
        raise ConfigError(f"{refusal} {name!r}. {near(str(name), known_names)}")


def near(name: str, known_names: Iterable[str]) -> str:
    """A hint for a message about an unknown name: ``"Did you mean 'x'?"``, or else the known names."""
    import difflib  # needed for messages only

    names = list(dict.fromkeys(known_names))
    if close := difflib.get_close_matches(name, names, n=1):
        return f"Did you mean {close[0]!r}?"
    remainder = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"Known: {', '.join(map(repr, names[:12]))}{remainder}." if names else ""
