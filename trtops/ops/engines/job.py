"""A build made ready: whatever decides the engine is read, has its digest, and stands in one spec.

Converting, campaigns and whoever else builds for the memory prepare their builds here, so that the same build has the
same spec whoever asks for it.
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
        caches: What the builder is given beside it.
        calibration: What INT8 is calibrated with; None for other precisions, and where a calibration cache is given.
        environment: Where the build is made.
        spec: What is asked for.
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
        """Find out what decides the engine. Calibration data is read, for its digest, where INT8 is calibrated with it.

        Args:
            model: The model.
            config: How to build.
            environment: Where.
            caches: What the builder is given beside it.
            check: How the engine will be evaluated; its data calibrates INT8 where there is no other.
            calibration_data: A data source for calibrating INT8.
        """
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
    """The content of a cache file that a config names; None where it names none.

    Raises:
        ConfigError: If the file cannot be read.
    """
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise errors.ConfigError(f"{field_name}={path!r} cannot be read: {exc.strerror}.") from None
