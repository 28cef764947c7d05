"""A build made ready: whatever decides the engine is read, has its digest, and stands in one spec.

Converting, campaigns and whoever else builds for the memory prepare their builds here, so that the same build has the
same spec whoever asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trtops import errors
from trtops.backend.base import Build, Caches, EngineBackend, Feed
from trtops.backend.onnx.model import Model
from trtops.metadata import TensorMetadata
from trtops.ops.judging.feeds import Feeds, open_feeds
from trtops.ops.judging.judgement import CheckConfig
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
        cls, model: Model, config: BuildConfig, environment: Environment, *, caches: Caches, calibration: Feeds
    ) -> BuildJob:
        """Find out what decides the engine.

        Args:
            model: The model.
            config: How to build.
            environment: Where.
            caches: What the builder is given beside it.
            calibration: Feeds for calibrating INT8, of which the config's ``calibration_samples`` are used. They are read
                for their digest where they are used, and not at all otherwise.
        """
        calibrated = config.precision == "int8" and caches.calibration is None
        feeds = calibration.first(config.calibration_samples) if calibrated else None
        data_sha256 = None if feeds is None else feeds.digest()
        spec = caches.spec(model.info.sha256, config, environment, data_sha256)
        return cls(model, caches, feeds, environment, spec)

    def build(self, backend: EngineBackend) -> Build:
        """Build the engine; see :meth:`trtops.backend.base.EngineBackend.build`."""
        feeds: Iterable[Feed] | None = self.calibration
        return backend.build(self.model, self.spec.config, caches=self.caches, calibration_data=feeds)


def calibration_feeds(model: Model, source: str | None, check: CheckConfig) -> Feeds:
    """What calibrates INT8: a source of its own, or else the data that the engine is judged on."""
    inputs = TensorMetadata.of(model.info.inputs)
    return check.open(inputs) if source is None else open_feeds(source, inputs)


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
