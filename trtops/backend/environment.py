"""Facts of the build environment shared by all back ends: processor, system, git commit, package releases."""

import contextlib
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trtops.record import digest
from trtops.spec import Environment

_CPUINFO = Path("/proc/cpuinfo")

# Flags of instruction sets, on x86 and ARM. Other flags (timers, mitigations, virtualization) depend on the operating
# system and the hypervisor, and have no influence on compute kernels.
_INSTRUCTION_SETS = (
    "sse", "ssse", "avx", "fma", "f16c", "amx", "bmi", "popcnt", "gfni", "vnni",
    "fp", "asimd", "neon", "sve", "sme", "bf16", "i8mm", "fphp",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Processor:
    """This machine's processor."""

    name: str
    machine: str
    instruction_sets: tuple[str, ...]  # sorted; empty if they are not known
    sha256: str  # without clock and number of cores: equal on machines for which the same kernels are best

    @property
    def saturates(self) -> bool:
        """Whether sums of two unsigned by signed 8-bit products saturate at 16 bits: on x86 without VNNI."""
        is_x86 = self.machine.lower() in ("x86_64", "amd64")
        return is_x86 and not any("vnni" in name for name in self.instruction_sets)


@cache
def processor() -> Processor:
    """Return the processor, read once per process from ``/proc/cpuinfo`` or Python's ``platform``."""
    facts: dict[str, str] = {}
    # The lines of the first core are enough: those of the others differ in the clock only.
    if _CPUINFO.exists():
        for line in _CPUINFO.read_text(errors="replace").split("\n\n", 1)[0].splitlines():
            key, _, value = line.partition(":")
            facts[key.strip()] = value.strip()
    machine = platform.machine()
    name = facts.get("model name") or platform.processor() or machine
    flags = facts.get("flags") or facts.get("Features") or ""
    instruction_sets = tuple(sorted({flag for flag in flags.split() if flag.startswith(_INSTRUCTION_SETS)}))
    identity = [facts.get(key, "") for key in ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")]
    return Processor(
        name=name,
        machine=machine,
        instruction_sets=instruction_sets,
        sha256=digest([machine, name, identity, instruction_sets]),
    )


def git_commit(folder: str | Path = ".") -> str | None:
    """Return the commit of a folder, with ``-dirty`` appended if tracked files differ; None outside git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def environment(*, packages: Iterable[str] = (), **facts: Any) -> Environment:
    """Return an environment with a back end's facts, and the releases of its installed packages."""
    from importlib.metadata import PackageNotFoundError, version  # takes as long to import as a short run's session

    versions = []
    for name in sorted(packages):
        with contextlib.suppress(PackageNotFoundError):
            versions.append((name, version(name)))
    return Environment(
        **facts,
        os=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        host=platform.node(),
        git_commit=git_commit(),
        packages=tuple(versions),
    )
