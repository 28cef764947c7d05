"""Prepare a build: read everything that decides the engine, and compute its spec.

All ops that build engines for the tracking store prepare them here, so that the same build has the same spec.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtops import errors
from trtops.backend.base import Build, Caches, EngineBackend
from trtops.backend.onnx.model import Model
from trtops.metadata import TensorMetadata
from trtops.ops.evaluation.check import CheckConfig
from trtops.ops.evaluation.feeds import Feeds, open_feeds
from trtops.spec import BuildConfig, BuildSpec, Environment


@dataclass(frozen=True)
class BuildJob:
    """One build, ready to be made.

    Attributes:
        model: The model.
        caches: Caches, replay and denied tactics for the builder.
        calibration: Data to calibrate INT8 with; None for other precisions, or if there is a calibration cache.
        environment: Where the build is made.
        spec: Everything that decides the engine.
    """

    model: Model
    caches: Caches
    calibration: Feeds | None
    environment: Environment
    spec: BuildSpec

    @classmethod
    def prepare(
        cls,
        model: Model,
        config: BuildConfig,
        environment: Environment,
        *,
        caches: Caches,
        check: CheckConfig,
        calibration_data: str | None,
    ) -> BuildJob:
        """Compute the spec. This reads INT8 calibration data for its digest; by default the data of the check."""
        feeds, data_sha256 = None, None
        if config.precision == "int8" and caches.calibration is None:
            inputs = TensorMetadata.of(model.info.inputs)
            source = check.open_for(model) if calibration_data is None else open_feeds(calibration_data, inputs)
            feeds = source.first(config.calibration_samples)
            data_sha256 = feeds.digest()
        spec = caches.spec(model.info.sha256, config, environment, data_sha256)
        return cls(model, caches, feeds, environment, spec)

    def build(self, backend: EngineBackend) -> Build:
        """Build the engine; see :meth:`trtops.backend.base.EngineBackend.build`."""
        return backend.build(self.model, self.spec.config, caches=self.caches, calibration_data=self.calibration)


def read_cache_file(path: str | None, field_name: str) -> bytes | None:
    """The content of a file that an option names; None if the option is not given.

    Raises:
        ConfigError: If the file cannot be read.
    """
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise errors.ConfigError(f"{field_name}={path!r} cannot be read: {exc.strerror}.") from None
