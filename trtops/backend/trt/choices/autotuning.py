"""Reads the timed tactics from TensorRT's log, on releases with an editable timing cache (10.8 and later).

There is no call for this. In editable mode the builder writes a table into its verbose log for each op that it times.
"""

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from trtops.backend.trt.library.log import nodes_named_in
from trtops.record import Record


@dataclass(frozen=True, kw_only=True)
class Candidate(Record):
    """One tactic timed for an op."""

    tactic_hash: int  # its number in the timing cache, 64 bits, unsigned
    kernel: str  # the kernel's name
    milliseconds: float  # its time


@dataclass(frozen=True, kw_only=True)
class TimedOp(Record):
    """A timed op."""

    op: str  # its name: a layer of the network, or a combination of several
    key: str  # its key in the timing cache, ``0x`` and 32 hexadecimal digits
    onnx_nodes: tuple[str, ...] = ()  # its ONNX nodes, if the release logs them
    candidates: tuple[Candidate, ...] = ()  # every tactic that was timed, fastest first

    def kernel_of(self, tactic_hash: int) -> str:
        """The kernel of a tactic; empty if it was not timed."""
        return next((c.kernel for c in self.candidates if c.tactic_hash == tactic_hash), "")


# The table has the op's name, its key in the timing cache, every tactic with its kernel and cost, and the one selected;
# since 11 the ONNX nodes too. NVIDIA's sample ``sampleEditableTimingCache`` reads it, and its README prints one.
_OP = re.compile(r"Autotuning op (?P<op>.*)\(key: (?P<key>0x[0-9a-fA-F]+)\)(?P<rest>.*)")
_CANDIDATE = re.compile(r"\s*\d+, (?P<cost>[^,\s]+), [^,\s]+, [^,\s]+, (?P<kernel>.+?), (?P<hash>0x[0-9a-fA-F]+),")
_SELECTED = re.compile(r"The selected tactic is \(tactic hash, cost\(in ms\)\):\s*(?P<hash>0x[0-9a-fA-F]+)")


def read_log(messages: Iterable[str]) -> tuple[TimedOp, ...]:
    """The ops timed by a build, in the log's order.

    The messages are those of one thread, verbose ones too; each may hold several lines.
    """
    timed_ops: dict[str, TimedOp] = {}
    op: re.Match[str] | None = None
    candidates: list[Candidate] = []
    for line in itertools.chain.from_iterable(map(str.splitlines, messages)):
        # A table ends with the selected tactic. One without it comes from a build that was cut short, and is left out.
        if begun := _OP.search(line):
            op, candidates = begun, []
        elif op is None:
            continue
        elif row := _CANDIDATE.match(line):
            candidates.append(
                Candidate(tactic_hash=int(row["hash"], 16), kernel=row["kernel"], milliseconds=float(row["cost"]))
            )
        elif _SELECTED.search(line):
            key = op["key"].lower()
            nodes = nodes_named_in(op["rest"])
            # Of an op that was timed again, the last table counts.
            timed_ops.pop(key, None)
            timed_ops[key] = TimedOp(op=op["op"], key=key, onnx_nodes=nodes, candidates=tuple(candidates))
            op = None
    return tuple(timed_ops.values())
