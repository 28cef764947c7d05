"""Which precisions an engine's layers got, compared with those that were asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from trtops import errors
from trtops.record import Record
from trtops.spec import Layer


@dataclass(frozen=True, kw_only=True)
class PrecisionAudit(Record):
    """The precisions that an engine's layers got, and those that were asked for.

    Attributes:
        requested: Precisions below FP32 that the build config asked for.
        layers: Number of computing layers per precision found.
        unknown: Number of computing layers that do not say.
    """

    requested: tuple[str, ...]
    layers: tuple[tuple[str, int], ...]
    unknown: int = 0

    @property
    def unrealised(self) -> tuple[str, ...]:
        """Precisions that were asked for and that no layer got; empty if layers do not say what they compute in."""
        found = {name for name, _ in self.layers}
        return () if self.unknown else tuple(name for name in self.requested if name not in found)

    def check(self) -> None:
        """Fail if no layer got a precision that was asked for.

        Raises:
            EngineBuildError: If so; lists what the layers got.
        """
        if self.unrealised:
            got = ", ".join(f"{count} in {name}" for name, count in self.layers) or "none"
            raise errors.EngineBuildError(
                f"The build asked for {', '.join(self.unrealised)}, and no layer got it (layers: {got}). The device may be "
                "faster without, or the model's operators may not have it; precision_constraints='obey' forces it."
            )

    def summary(self) -> str:
        """The audit in one line."""
        got = ", ".join(f"{count} {name}" for name, count in self.layers)
        missing = f"; asked for and not used: {', '.join(self.unrealised)}" if self.unrealised else ""
        return f"{got}{f', {self.unknown} unknown' if self.unknown else ''}{missing}"


_NOT_COMPUTING = ("reformat", "constant", "shape", "noop", "signal", "wait", "shuffle", "gather", "slice")


def audit_precision(layers: Iterable[Layer], requested: Iterable[str]) -> PrecisionAudit:
    """Compare the precisions that layers got with those that were asked for.

    Args:
        layers: An engine's layers.
        requested: Precisions of the build config.
    """
    computing = [found for found in layers if not any(word in found.op.lower() for word in _NOT_COMPUTING)]
    counts = Counter(found.precision for found in computing)
    unknown = counts.pop("", 0)
    # A fused region counts as one layer: it gives one type for many operators.
    return PrecisionAudit(
        requested=tuple(name for name in requested if name != "fp32"),
        layers=tuple(counts.most_common()),
        unknown=unknown,
    )
