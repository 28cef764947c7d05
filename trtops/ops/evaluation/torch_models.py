"""PyTorch models of ops: exported with the inputs of an op's config, and compared with their export."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trtops import errors
from trtops.backend.engines import newest_opset
from trtops.backend.onnx.model import Model
from trtops.backend.torch.module import TorchModel
from trtops.calibration.data import ArraysInMemory, is_same_source
from trtops.metadata import TensorMetadata
from trtops.ops.evaluation.data import Feeds, open_feeds
from trtops.ops.evaluation.export_check import ExportedModel, check_export, fixed_axes
from trtops.ops.result import run_step, step_time
from trtops.spec import BuildConfig, OptimizationProfile

if TYPE_CHECKING:
    from trtops.backend.runner import Feed
    from trtops.backend.torch.export import Example, Export


# Feeds whose shapes decide which axes are dynamic; of calibration data, also those on which an export is checked.
_FEEDS = 64


def exported(
    source: Any, config: Any, build: BuildConfig | None = None, profiles: Sequence[OptimizationProfile] = ()
) -> tuple[Export, Any]:
    """Export a PyTorch model with the inputs of a config.

    Args:
        source: A module, a program, ``script.py:function``, or a ``.pt2`` file.
        config: The config of an op, with data, shapes and profiles; other values count as none.
        build: The build of an op whose config has none.
        profiles: Optimization profiles without a build.

    Returns:
        The export, and the config, whose data is not opened again.
    """
    from trtops.backend.torch.export import export

    model = TorchModel.open(source)
    check, build = getattr(config, "check", config), getattr(config, "build", build)
    data, calibration = getattr(check, "data", None), getattr(config, "calibration_data", None)
    is_same = data is not None and is_same_source(data, calibration)
    data_source = data or calibration
    feeds = None if data_source is None else open_feeds(data_source, TensorMetadata())
    profiles = (getattr(config, "profiles", ()) or profiles) if build is None else build.profiles
    shapes, types = getattr(check, "input_shapes", {}), getattr(check, "input_dtypes", {})
    example = _example(model, feeds, shapes, types, profiles)
    result = export(model, example, None if build is None else newest_opset(build.backend))
    if result.fixed:
        reasons = "; ".join(loss.text for loss in fixed_axes(result))
        raise errors.InvalidModelError(
            f"PyTorch to ONNX: {reasons}. The data and profiles have other sizes. Compute with tensors what depends on "
            "the size, or give one size only."
        )
    if feeds is not None and (result.dropped or not isinstance(data_source, ArraysInMemory)):
        opened = ArraysInMemory(data_source)
        inputs = result.inputs
        opened.feeds = Feeds(feeds.source, lambda: ({n: feed[n] for n in feed if n in inputs} for feed in feeds))
        if data is not None:
            check = replace(check, data=opened)
            config = replace(config, check=check) if hasattr(config, "check") else check
        if data is None or is_same:
            config = replace(config, calibration_data=opened)
    return result, config


def exported_model(
    source: Any, config: Any, build: BuildConfig | None = None, *, allow_bad: bool = False
) -> tuple[ExportedModel, Any]:
    """Export a PyTorch model, and compare it with its export on the config's data; returns as :func:`exported`.

    InvalidModelError if the export does not repeat the module, unless that is allowed.
    """
    with step_time("export"):
        export, config = exported(source, config, build)
        model = Model.load(export.path)
    check, profiles = getattr(config, "check", config), getattr(getattr(config, "build", build), "profiles", ())
    if check.data is None and getattr(config, "calibration_data", None) is not None:
        check = replace(check, data=open_feeds(config.calibration_data, TensorMetadata()).first(_FEEDS))
    feeds = check.open_for(model, profiles=profiles)
    result = run_step("check export", check_export, export, model, feeds)
    if result.verdict == "bad" and not allow_bad:
        raise errors.InvalidModelError(
            f"The export of {result.source} does not repeat the module, so nothing is built. "
            f"{'; '.join(result.reasons)}. Remedy: {result.remedy}."
        )
    exported_from = str(export.path) if export.model.is_object else export.model.source
    return ExportedModel(**vars(model), exported_from=exported_from, check=result), config


def _example(
    model: TorchModel,
    feeds: Iterable[Feed] | None,
    shapes: Mapping[str, Sequence[int]],
    types: Mapping[str, str],
    profiles: Sequence[OptimizationProfile],
) -> Example:
    """The inputs of an export: of the data, or of a program, or random ones of given shapes."""
    from trtops.backend.torch.export import Example

    sizes: dict[str, list[Sequence[int]]] = {}
    arrays: dict[str, Any] = {}
    if feeds is not None:
        for feed in itertools.islice(feeds, _FEEDS):
            arrays = arrays or {name: np.asarray(array) for name, array in feed.items()}
            for name, array in feed.items():
                sizes.setdefault(name, []).append(np.shape(array))
    for profile in profiles:
        for bounds in profile.shapes:
            sizes.setdefault(bounds.name, []).extend((bounds.opt, bounds.min, bounds.max))
    for name, shape in shapes.items():
        sizes.setdefault(name, []).insert(0, shape)
    names = model.inputs
    if not names:
        raise errors.ConfigError(f"{model.source} is {model.signature}; expected parameters with names, one per input.")
    for name in (*sizes, *types):
        errors.check_known(name, names, f"{model.source} is {model.signature}; it has no input")
    if not sizes and model.program is not None:
        arrays = model.example()
        sizes = {name: [np.shape(array)] for name, array in arrays.items()}
    if not sizes:
        raise errors.InputError(
            f"{model.source} is {model.signature}, and the shapes of its inputs are not known. Give data with an array "
            "for each input (--load-inputs FILE.npz; in Python data={'x': array}), or shapes and types (--input-shapes "
            "x:[2,3,224,224], --input-dtypes ids:int64). For commands without these options, `trtops convert` writes "
            "an ONNX file (-o net.onnx)."
        )
    random, dynamic = np.random.default_rng(1), dict[str, tuple[int, ...]]()
    for name in filter(sizes.__contains__, names):
        if len({len(shape) for shape in sizes[name]}) > 1:
            raise errors.InputError(f"Input {name!r} has the shapes {sizes[name]}; expected one number of axes.")
        axes = list(zip(*sizes[name]))
        dynamic[name] = tuple(axis for axis, dims in enumerate(axes) if len(set(dims)) > 1 or min(dims) < 0)
        # A size of 1 is a special case of many operators, so that an export with it fits no other.
        shape = [
            next((dim for dim in dims if dim > 1), 2) if axis in dynamic[name] else dims[0]
            for axis, dims in enumerate(axes)
        ]
        dtype = np.dtype(types.get(name, "float32"))
        if name not in arrays or np.shape(arrays[name]) != tuple(shape):
            dtype = arrays[name].dtype if name in arrays else dtype
            floating = np.issubdtype(dtype, np.floating)
            arrays[name] = (random.uniform(-1, 1, shape) if floating else random.integers(0, 2, shape)).astype(dtype)
    return Example({name: arrays[name] for name in names if name in arrays}, dynamic)
