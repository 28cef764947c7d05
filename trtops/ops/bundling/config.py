"""What is bundled, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trtops import errors
from trtops.ops.result import OpResult
from trtops.record import Record
from trtops.tables import size
from trtops.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class BundleConfig(Record):
    """What goes into a bundle.

    Attributes:
        output: The zip; ``<experiment>-<run>.zip`` here unless given.
        strip_weights: Replace the weights by random ones with which the model still shows the fault, and leave out the
            engine, which holds the true ones. Refused where none of the draws shows it.
        attempts: How many draws of random weights to try.
        seed: Seed of the first draw.
        materials: A folder with what the run did not keep, found by digest.
        allow_scripts: Whether scripts that the run names for its data may be run.
        timeout_seconds: How long the script of a bundle may take when it is tried.
    """

    output: str | None = None
    strip_weights: bool = False
    attempts: int = 12
    seed: int = 0
    materials: str | None = None
    allow_scripts: bool = False
    timeout_seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise errors.ConfigError(f"attempts is {self.attempts}; expected 1 or more.")
        if self.output is not None and not self.output.endswith(".zip"):
            raise errors.ConfigError(f"output is {self.output!r}; a bundle is a .zip file.")


@dataclass(frozen=True, kw_only=True)
class BundleResult(OpResult):
    """A bundle.

    Attributes:
        repeats: The verdict that it repeats.
        path: Where it is.
        sha256: Its digest; the same case gives the same one, wherever and whenever it is bundled.
        size: Bytes.
        files: What is in it.
        stripped: Weights that are random in it; empty if it holds the true ones.
        how: How these were drawn.
        said: What its script printed when it was tried here; empty where it could not be.
        missing: What the run had not kept, and what stands in for it.
    """

    repeats: Verdict
    path: str
    sha256: str
    size: int
    files: tuple[str, ...]
    stripped: tuple[str, ...] = ()
    how: str = ""
    said: str = ""
    missing: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """``good``: a bundle that would not repeat its verdict is not made."""
        return "good"

    @property
    def headline(self) -> str:
        """What it repeats."""
        return f"repeats {self.repeats}" if self.said else f"repeats {self.repeats}, not tried here"

    def body(self) -> Iterable[str]:
        """Where it is, how to run it, and what it printed."""
        yield f"`{self.path}`, {size(self.size)}, SHA-256 `{self.sha256}`. Unpack it and run `python reproduce.py`."
        if self.stripped:
            yield from ("", f"{len(self.stripped)} weights are random: {self.how}.")
        yield from (f"- {each}" for each in self.missing)
        if self.said:
            yield from ("", "```", self.said.rstrip(), "```")
        yield from ("", *(f"- `{name}`" for name in self.files))
