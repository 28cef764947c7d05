"""The TensorRT back end, under Polygraphy's names. TensorRT itself is imported when something is made.

Where TensorRT is missing, importing this package works; what needs it raises ``BackendUnavailableError``.
"""

from trtops.lazy import exports, known_as

__getattr__, __dir__ = exports(__name__)
known_as(__name__, "algorithm_selector", "calibrator", "config", "file_reader", "loader", "profile", "runner")
