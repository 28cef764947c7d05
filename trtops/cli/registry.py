"""Which commands there are: their words, and a line about each. Importing this imports none of them."""

from __future__ import annotations

from typing import TypeAlias

Path: TypeAlias = tuple[str, ...]

FOLDERS: dict[Path, str] = {
    ("inspect",): "look into models, engines, saved data, tactics and runs",
    ("check",): "check models and saved comparisons",
    ("surgeon",): "cut, clean and change ONNX models",
    ("debug",): "find out why an engine is wrong",
    ("data",): "join saved inputs and outputs",
    ("template",): "write scripts to start from",
    ("plugin",): "find where TensorRT plugins fit into a model, and put them there",
    ("runs",): "read and use what the store remembers",
    ("store",): "maintain the tracking store",
    ("team",): "run a team's servers and a worker on this machine",
}
"""Words that more words follow."""

COMMANDS: dict[Path, str] = {
    ("run",): "run a model on several back ends and compare what they say",
    ("convert",): "make an engine, or another ONNX model",
    ("build-list",): "build every model of a list, and say what became of each",
    ("calibrate",): "find INT8 ranges, and evaluate INT8 next to other precisions",
    ("compare",): "compare two runs, engines, models or saved outputs, and remember it",
    ("triage",): "find out why an engine is bad, question by question, down to the smallest case",
    ("report",): "write a run, or two side by side, as one HTML page",
    ("gate",): "hold a candidate against the accepted engine, and accept or refuse it",
    ("sensitivity",): "measure what each layer costs in INT8",
    ("inspect", "model"): "show an ONNX model, a TensorRT network or an engine",
    ("inspect", "data"): "show saved inputs or outputs, with statistics",
    ("inspect", "diff"): "compare two files of saved outputs",
    ("inspect", "tactics"): "show a tactic record",
    ("inspect", "diff-tactics"): "find the tactic that bad records share and good ones lack",
    ("inspect", "engines"): "put two engines side by side, layer by layer",
    ("inspect", "capability"): "say which parts of a model TensorRT can run",
    ("inspect", "sparsity"): "say which weights are 2:4 sparse",
    ("inspect", "calibration"): "show a calibration cache, or compare two",
    ("inspect", "run"): "show everything a run holds",
    ("check", "lint"): "find what is wrong with an ONNX model, node by node",
    ("check", "accuracy"): "re-evaluate saved comparisons, by other tolerances",
    ("check", "compatibility"): "say whether a model loads and runs in a back end",
    ("surgeon", "extract"): "cut a part out of a model",
    ("surgeon", "sanitize"): "fold constants, clean up, change shapes and outputs",
    ("surgeon", "insert"): "put a node between tensors",
    ("surgeon", "prune"): "make weights 2:4 sparse, or take out types of nodes",
    ("surgeon", "weight-strip"): "take the weights out of a model, to share its structure",
    ("surgeon", "weight-reconstruct"): "put weights back into a stripped model",
    ("debug", "build"): "build again and again, evaluate each engine, and sort what it left",
    ("debug", "diff-tactics"): "find the tactic that bad records share and good ones lack",
    ("debug", "bisect"): "build mixtures of a good and a bad build until it is known what makes it bad",
    ("debug", "prove"): "swap a campaign's suspect in and out of builds that are known",
    ("debug", "noise"): "say what runs, builds and the precision add to a campaign's error",
    ("debug", "reduce"): "find the smallest part of a model that still fails",
    ("debug", "precision"): "find the layers that must stay in FP32",
    ("debug", "accuracy"): "find out where an engine goes wrong, step by step",
    ("debug", "repeat"): "run a command again and again, and sort what it left",
    ("data", "merge"): "make inputs of saved inputs and outputs",
    ("data", "to-input"): "make inputs of saved inputs and outputs (the same as merge)",
    ("data", "concat"): "put files of saved inputs or outputs behind one another",
    ("template", "trt-network"): "write a script that defines or changes a TensorRT network",
    ("template", "trt-config"): "write a script that makes a TensorRT builder config",
    ("template", "onnx-gs"): "write a script that changes a model with ONNX-GraphSurgeon",
    ("template", "data-loader"): "write a script that makes input data",
    ("plugin", "list"): "count the places where plugins fit",
    ("plugin", "match"): "write down the places where plugins fit",
    ("plugin", "replace"): "put plugins into these places",
    ("runs", "list"): "list runs",
    ("runs", "show"): "show what is known of a run",
    ("runs", "compare"): "show params and numbers of runs side by side",
    ("runs", "evaluate"): "re-evaluate stored runs, by other tolerances or a policy",
    ("runs", "audit"): "hold runs against themselves, build them again, and grade each",
    ("runs", "prune"): "drop large artifacts of old bad runs",
    ("runs", "bundle"): "pack a run into one zip with which a stranger repeats its verdict",
    ("runs", "promote"): "accept a run's engine for everybody",
    ("runs", "resolve"): "find the accepted engine for a model, here",
    ("runs", "deny"): "put what a proof confirmed on the deny-list",
    ("runs", "close"): "close a run that its dead process left running",
    ("runs", "pardon"): "take an entry off the deny-list",
    ("store", "reap"): "close the runs of dead processes, and remove their leftovers",
    ("store", "check"): "find problems of a store",
    ("store", "upload"): "upload the runs that were spooled here while the store was away",
    ("store", "ui"): "show the store in MLflow's UI",
    ("team", "up"): "start Prefect, MLflow, their database and a worker",
    ("team", "down"): "end what was started",
    ("team", "status"): "say what is up, where, and since when",
    ("team", "env"): "print what a shell needs to use the servers",
    ("team", "password"): "print user and password of a server",
    ("doctor",): "say whether store, servers, workers, GPU and releases can be used, and what to do",
    ("completion",): "print a completion script for bash, zsh or fish",
}
"""Every command, with a line about it. Its module follows from its words: see ``main.load``."""

OTHER_WORDS: dict[Path, Path] = {
    ("inspect", "diff"): ("compare",),
    ("debug", "diff-tactics"): ("inspect", "diff-tactics"),
    ("data", "to-input"): ("data", "merge"),
}
"""Commands that are others by other words, most of them Polygraphy's."""

READERS: frozenset[Path] = frozenset(
    {
        *(("inspect", what) for what in ("model", "data", "tactics", "engines", "sparsity", "calibration", "run")),
        ("runs", "list"),
        ("runs", "show"),
        ("plugin", "list"),
        ("completion",),
    }
)
"""Commands that show what is there and evaluate nothing: whoever has read the beginning may go away."""

REPORTED: frozenset[Path] = frozenset(
    {
        ("run",),
        ("check", "lint"),
        ("check", "accuracy"),
        ("inspect", "sparsity"),
        ("debug", "build"),
        ("debug", "precision"),
        ("debug", "reduce"),
        ("debug", "repeat"),
        ("surgeon", "extract"),
        ("surgeon", "sanitize"),
        ("surgeon", "prune"),
        ("surgeon", "weight-strip"),
        ("surgeon", "weight-reconstruct"),
    }
)
"""Commands that log their start and end as Polygraphy does: ``PASSED`` or ``FAILED``, the time, and the line."""

_ONE_GPU = "engines that several GPUs share are not made here: each engine is built, evaluated and remembered on one"

NOT_CARRIED_OUT: dict[Path, str] = {
    (
        "plugin",
        "autotune",
    ): "combinations of plugins are not tried out one by one. Write the places down by `trtops plugin "
    "match`, edit the file, and compare the engines of what `trtops plugin replace` makes by `trtops convert "
    "--experiment NAME` and `trtops runs compare`",
    ("template", "shard-hints"): f"{_ONE_GPU}. Write the hints by hand, or with Polygraphy",
    ("multi-device", "shard"): f"{_ONE_GPU}. Split the model by `trtops surgeon extract`, and build the parts",
}
"""Polygraphy's commands that are known and not carried out, with what to do instead."""


VARIABLES = {
    "TRTOPS_HOME": "where runs are kept (default: ./mlruns)",
    "MLFLOW_TRACKING_URI": "an MLflow server to keep them on instead",
    "TRTOPS_CREDENTIALS": "a file with user and password for that server",
    "TRTOPS_TRACKING_WAIT": "seconds that a store which does not answer is waited for (default: 90)",
    "TRTOPS_SPOOL": "folder of runs that the store could not take (default: <TRTOPS_HOME>/spool)",
    "TRTOPS_USE_TENSORRT_RTX": "1: TensorRT is TensorRT-RTX",
    "TRTOPS_ARRAY_SWAP_THRESHOLD_MB": "saved arrays larger than this wait in a file, not in memory",
    "TRTOPS_ALLOWED_SCRIPTS": "folders, with ':' between: scripts, check commands and plugins elsewhere are not run",
    "TRTOPS_ARTIFACT_HOSTS": "further hosts, with commas between them, at which a server may keep its artifacts",
    "TRTOPS_MEMORY_LIMIT": "memory that looking at a file may take beyond the file's own size (default: 1792M)",
    "TRTOPS_NODE_LIMIT": "nodes that a model's functions may come to (default: 200000)",
    "TRTOPS_ALLOW_HOST_CODE": "1: version compatible TensorRT engines may run their own code on this machine",
    "NO_COLOR": "any value: no colours",
}
"""Environment variables, with what they do."""

_NOTHING_INSTALLED = "nothing is installed by a command; it says what is missing, and the line that installs it"

IDLE_VARIABLES = {
    "TRTOPS_AUTOINSTALL_DEPS": _NOTHING_INSTALLED,
    "TRTOPS_ASK_BEFORE_INSTALL": _NOTHING_INSTALLED,
    "TRTOPS_INSTALL_CMD": _NOTHING_INSTALLED,
    "TRTOPS_INTERNAL_CORRECTNESS_CHECKS": "they are part of the tests",
}
"""Polygraphy's environment variables that have no effect here, with why."""


def below(folder: Path) -> dict[str, str]:
    """The words that may follow these, with a line about each."""
    size = len(folder)
    words = {path[size]: COMMANDS[path] for path in COMMANDS if path[:size] == folder and len(path) == size + 1}
    folders = {path[size]: FOLDERS[path] for path in FOLDERS if path[:size] == folder and len(path) == size + 1}
    return words | folders


def find(words: list[str]) -> tuple[Path, list[str]]:
    """The longest command or folder that a line begins with, and the words after it."""
    path: Path = ()
    for word in words:
        if (*path, word) not in COMMANDS and (*path, word) not in FOLDERS:
            break
        path = (*path, word)
    return path, words[len(path) :]
