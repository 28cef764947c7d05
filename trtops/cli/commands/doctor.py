"""The command ``trtops doctor``."""

import json
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from trtops import __version__
from trtops.backend.engines import BACKENDS, engine_backend
from trtops.cli import groups
from trtops.cli.flags import Group, Options, flag
from trtops.cli.jobs import direct_command, json_of
from trtops.cli.logs import say, say_json
from trtops.errors import TrtopsError
from trtops.extras import hidden_onnxruntime
from trtops.tracking.check import HealthFinding, store_findings

_REPORTED_PACKAGES = ("onnx", "onnxruntime", "onnx-graphsurgeon", "mlflow", "prefect", "numpy", "tensorrt", "torch")


SELF_TEST = Group(
    "self-test",
    flag("--self-test", "build and run small models on each installed back end; takes minutes with TensorRT"),
    flag("-o --output FILE", "where to write the report of the self-test (JSON)"),
)


@direct_command(
    groups.STORE, groups.JSON, SELF_TEST,
    examples=("trtops doctor", "trtops doctor --store /data/mlruns --json", "trtops doctor --self-test -o report.json"),
)  # fmt: skip
def doctor(args: Options) -> int:
    """Report installed packages, devices and stores, with a fix for each problem.

    Exits with 1 if there is a problem. Checks packages, back ends and GPU, the store, servers and workers. Nothing is
    started, made or changed. With --self-test, the back ends are tried on small models instead.
    """
    if args.self_test:
        return _self_test(args)
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


def _self_test(args: Options) -> int:
    from trtops.ops.self_test import self_test  # imports the back ends

    reports = []
    for report in self_test():
        reports.append(report)
        if not args.json:
            say(f"{report.backend} {report.release} on {report.device}")
            say("\n".join(f"  {check.outcome:<11} {check.name} {check.detail}".rstrip() for check in report.checks))
    if args.output:
        Path(args.output).write_text(json.dumps(json_of(reports), indent=1) + "\n", encoding="utf-8")
    if args.json:
        say_json(json_of(reports))
    elif not reports:
        say("No back end is installed.")
    return int(not reports or not all(report.passed for report in reports))


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
