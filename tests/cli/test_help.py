"""Help says of every option that takes a number or one of some words what holds without it, and says it truly."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from trtops import ops
from trtops.cli import registry
from trtops.cli.flags import Flag
from trtops.cli.main import load, parser_of
from trtops.ops.triaging.result import TriageConfig

KNOWN = ("default", "unless")
OF_CONFIG: dict[tuple[str, str], tuple[type[Any], str]] = {
    ("calibrate", "--algorithm"): (ops.CalibrateConfig, "algorithm"),
    ("calibrate", "--percentile"): (ops.CalibrateConfig, "percentile"),
    ("calibrate", "--calibrator"): (ops.CalibrateConfig, "calibrator"),
    ("calibrate", "--samples"): (ops.CalibrateConfig, "samples"),
    ("triage", "--rebuilds"): (TriageConfig, "rebuilds"),
    ("triage", "--max-builds"): (TriageConfig, "campaign_builds"),
    ("sensitivity", "--samples"): (ops.SensitivityConfig, "samples"),
    ("sensitivity", "--budget"): (ops.SensitivityConfig, "budget"),
    ("sensitivity", "--mode"): (ops.SensitivityConfig, "mode"),
    ("debug build", "--parallel"): (ops.DebugBuildConfig, "parallel"),
    ("debug build", "--build-timeout"): (ops.DebugBuildConfig, "timeout_seconds"),
    ("debug bisect", "--seed"): (ops.BisectConfig, "seed"),
    ("debug prove", "--repeats"): (ops.ProveConfig, "repeats"),
    ("debug noise", "--builds"): (ops.NoiseConfig, "builds"),
    ("debug noise", "--runs"): (ops.NoiseConfig, "runs"),
    ("debug noise", "--statistic"): (ops.NoiseConfig, "statistic"),
    ("debug noise", "--confidence"): (ops.NoiseConfig, "confidence"),
    ("debug reduce", "--mode"): (ops.ReduceConfig, "mode"),
    ("debug reduce", "--inputs-are"): (ops.ReduceConfig, "inputs"),
    ("debug reduce", "--width"): (ops.ReduceConfig, "width"),
    ("debug precision", "--mode"): (ops.PrecisionConfig, "mode"),
    ("debug precision", "--dir"): (ops.PrecisionConfig, "direction"),
    ("inspect diff-tactics", "--by"): (ops.DiffTacticsConfig, "by"),
    ("inspect diff-tactics", "--confidence"): (ops.DiffTacticsConfig, "confidence"),
    ("gate", "--build-timeout"): (ops.GateConfig, "timeout_seconds"),
    ("runs audit", "--seed"): (ops.AuditConfig, "seed"),
    ("runs audit", "--repeats"): (ops.AuditConfig, "repeats"),
    ("runs audit", "--build-timeout"): (ops.AuditConfig, "timeout_seconds"),
    ("runs bundle", "--script-timeout"): (ops.BundleConfig, "timeout_seconds"),
    ("runs promote", "--build-timeout"): (ops.PromoteConfig, "timeout_seconds"),
}  # fmt: skip
"""Options whose default is that of a config's field."""


def flags_of(path: registry.Path) -> list[Flag]:
    return [flag for group in load(path).GROUPS for flag in group.flags]


def takes_a_value(flag: Flag) -> bool:
    """Whether it takes a number or one of some words, and may be left out."""
    no_value = flag.positional or flag.takes in ("switch", "count", "runner", "rest")
    of_no_use = flag.required or flag.refuse or flag.idle
    return not no_value and not of_no_use and bool(flag.convert in (int, float) or flag.choices)


@pytest.mark.parametrize("path", registry.COMMANDS, ids=" ".join)
def test_help_says_what_holds_without_an_option(path: registry.Path) -> None:
    silent = [
        flag.names[0]
        for flag in flags_of(path)
        if takes_a_value(flag) and not flag.usual and not flag.default and not any(w in flag.help for w in KNOWN)
    ]
    assert silent == []
    said = " ".join(parser_of(path, load(path)).format_help().split())
    assert all(f"(default: {flag.usual})" in said for flag in flags_of(path) if flag.usual)


@pytest.mark.parametrize(("command", "name"), OF_CONFIG, ids=" ".join)
def test_the_default_in_help_is_that_of_the_op(command: str, name: str) -> None:
    config, field = OF_CONFIG[command, name]
    [flag] = [flag for flag in flags_of(tuple(command.split())) if name in flag.names]
    default = next(each.default for each in dataclasses.fields(config) if each.name == field)
    assert flag.convert(flag.usual) == default
