"""The command ``trtops doctor``."""

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from trtops import __version__
from trtops.backend.engines import BACKENDS, engine_backend
from trtops.cli import groups
from trtops.cli.flags import Options
from trtops.cli.jobs import direct_command, json_of
from trtops.cli.logs import say, say_json
from trtops.errors import TrtopsError
from trtops.extras import hidden_onnxruntime
from trtops.tracking.check import HealthFinding, store_findings

_REPORTED_PACKAGES = ("onnx", "onnxruntime", "onnx-graphsurgeon", "mlflow", "prefect", "numpy", "tensorrt", "torch")


@direct_command(groups.STORE, groups.JSON, examples=("trtops doctor", "trtops doctor --store /data/mlruns --json"))
def doctor(args: Options) -> int:
    """Report installed packages, devices and stores, with a fix for each problem.

    Exits with 1 if there is a problem. Checks packages, back ends and GPU, the store, servers and workers. Nothing is
    started, made or changed.
    """
    # Brings what starts servers, which help does not need.
    from trtops.team.servers import team_findings

    findings = [*_backend_findings(), *store_findings(args.store), *team_findings()]
    problems = sum(finding.state == "problem" for finding in findings)
    if args.json:
        say_json(json_of(findings))
        return int(problems > 0)
    say(f"trtops {__version__}, Python {sys.version.split()[0]}")
    say("  " + ", ".join(f"{name} {_version_of(name)}" for name in _REPORTED_PACKAGES))
    for finding in findings:
        say(finding.line())
    say(f"\n{problems} {'problem' if problems == 1 else 'problems'} found." if problems else "\nNothing is wrong.")
    return int(problems > 0)


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "-"


def _backend_findings() -> Iterator[HealthFinding]:
    text, remedy = hidden_onnxruntime()
    if text:
        yield HealthFinding(subject="onnxruntime", state="problem", text=text, remedy=remedy)
    for name in BACKENDS:
        try:
            environment = engine_backend(name).environment()
        except TrtopsError as exc:
            yield HealthFinding(subject=name, state="none", text=str(exc))
        else:
            yield HealthFinding(subject=name, state="ok", text=f"{environment.backend_version} on {environment.device}")
