"""The control of a search: a check that fails on everything it was asked about is asked about a model that has no fault.

A check that cannot work here (a module is missing, a path is wrong) fails on the whole model and on each part of it, and the
search would end with one node that is as good as any.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from trtops import errors
from trtops.backend.base import Feed
from trtops.backend.onnx.submodel import Cutter
from trtops.backend.onnxrt.observe import observe
from trtops.ops.evaluation.submodel import Check, CheckOutcome

log = logging.getLogger(__name__)

_FAULTLESS = ("Identity", "Neg")  # two, since a check may look for an operator


def require_control(check: Check, feeds: Sequence[Feed]) -> None:
    """Ask a check that has passed nothing about models of one node, which compute what their definition says.

    Args:
        check: The check.
        feeds: What the searched model is fed with; none where no data is wanted.

    Raises:
        ConfigError: If it fails on them as well.
    """
    outcome = CheckOutcome(verdict="pass")
    for op in _FAULTLESS:
        proto, feed = _one_node(op, feeds)
        cutter = Cutter(proto)
        values = observe(cutter, [feed])
        try:
            outcome = CheckOutcome.of(check(cutter.cut(cutter.order, values)))
        except errors.ConfigError:
            raise
        except Exception as exc:  # no failure of the kind that is meant
            log.info("The control was not evaluated: %s: %s", type(exc).__name__, exc)
            return
        finally:
            values.close()
        if outcome.verdict != "fail":
            return
    said = outcome.detail.strip()
    raise errors.ConfigError(
        "The check is broken: it fails on the model, on every part of it that was tried, and on a model of one "
        f"{_FAULTLESS[0]} as well. Run it by hand on a model that is right, and mend it."
        + (f" It said: {said}" if said else "")
    )


def _one_node(op: str, feeds: Sequence[Feed]) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model of one node on a floating-point input of the searched model, and a feed for it.

    Its names are its own, since a check may look for those of the searched model.
    """
    arrays = (np.asarray(array) for array in (feeds[0] if feeds else {}).values())
    array = next((each for each in arrays if each.dtype == np.float32), np.linspace(-1, 1, 4, dtype=np.float32))
    graph = helper.make_graph(
        [helper.make_node(op, ["control_in"], ["control_out"], "control")],
        "control",
        [helper.make_tensor_value_info("control_in", TensorProto.FLOAT, array.shape)],
        [helper.make_tensor_value_info("control_out", TensorProto.FLOAT, array.shape)],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return proto, {"control_in": array}
