"""Facts about this machine and process that end up in an :class:`~trtops.spec.Environment`.

What every back end shares stands here: the processor, the system, the working folder's commit, releases of packages.
Each back end adds what only it knows.
"""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from trtops.record import digest
from trtops.spec import Environment

_CPUINFO = Path("/proc/cpuinfo")

# Flags that name instruction sets, on x86 and ARM. The rest of the kernel's flags (timers, mitigations, virtualization)
# change with kernels and hypervisors and decide no kernel.
_INSTRUCTION_SETS = (
    "sse", "ssse", "avx", "fma", "f16c", "amx", "bmi", "popcnt", "gfni", "vnni",
    "fp", "asimd", "neon", "sve", "sme", "bf16", "i8mm", "fphp",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Processor:
    """This machine's processor.

    Attributes:
        name: Its model name, or the architecture where the system does not say.
        machine: The architecture, such as ``x86_64``.
        instruction_sets: Its instruction sets as the kernel names them, sorted; empty where the system does not say.
        sha256: Digest of vendor, family, model, name and instruction sets: equal on machines whose processors run the
            same code equally well. Clock, number of cores and everything virtual are left out.
    """

    name: str
    machine: str
    instruction_sets: tuple[str, ...]
    sha256: str


@cache
def processor() -> Processor:
    """The processor, read once per process from ``/proc/cpuinfo`` or else from what Python knows."""
    facts = _cpuinfo_facts(_CPUINFO.read_text(errors="replace")) if _CPUINFO.exists() else {}
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


def _cpuinfo_facts(text: str) -> dict[str, str]:
    """The first processor's lines of ``/proc/cpuinfo``, by key."""
    facts: dict[str, str] = {}
    for line in text.split("\n\n", 1)[0].splitlines():
        key, _, value = line.partition(":")
        facts[key.strip()] = value.strip()
    return facts


def git_commit(folder: str | Path = ".") -> str | None:
    """The commit checked out in a folder, with ``-dirty`` behind it if tracked files differ; None outside git."""
    command = ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def package_versions(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Releases of the named packages that are installed, sorted by name; what is not installed is left out."""
    versions = []
    for name in sorted(names):
        try:
            versions.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return tuple(versions)


def environment(
    *,
    backend: str,
    backend_version: str,
    device: str,
    device_sha256: str,
    packages: Iterable[str] = (),
    compute_capability: str | None = None,
    driver: str | None = None,
    cuda: str | None = None,
) -> Environment:
    """An environment: what the back end says, with what this module finds out.

    Args:
        backend: Back end's name.
        backend_version: Its release.
        device: The device's name.
        device_sha256: Digest of what identifies the kind of device to the builder.
        packages: Names of the packages that rewrite models on the way to the engine.
        compute_capability: Of a GPU.
        driver: GPU driver release.
        cuda: CUDA runtime release.
    """
    return Environment(
        backend=backend,
        backend_version=backend_version,
        device=device,
        device_sha256=device_sha256,
        compute_capability=compute_capability,
        driver=driver,
        cuda=cuda,
        os=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        host=platform.node(),
        git_commit=git_commit(),
        packages=package_versions(packages),
    )
