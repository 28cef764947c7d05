"""All commands: their words, and a line about each."""

# No command is imported here, so that help is fast.

from typing import TypeAlias

Path: TypeAlias = tuple[str, ...]

# Words that more words follow.
FOLDERS: dict[Path, str] = {
    ("inspect",): "show models, engines, saved data, tactics and runs",
    ("check",): "check models and saved comparisons",
    ("surgeon",): "cut, clean and change ONNX models",
    ("debug",): "find out why an engine is wrong",
    ("data",): "join saved inputs and outputs",
    ("template",): "write scripts to start from",
    ("plugin",): "find where TensorRT plugins fit into a model, and insert them",
    ("runs",): "list, compare, audit and promote recorded runs",
    ("store",): "maintain the tracking store",
    ("certificate",): "certify engines, and verify certificates",
    ("team",): "run a team's servers and a worker on this machine",
}

# Every command; `command_line.load` finds its module.
COMMANDS: dict[Path, str] = {
    ("run",): "run a model on several back ends and compare their outputs",
    ("convert",): "make an engine, or another ONNX model",
    ("evaluate",): "check an engine that another program built, or a folder of them",
    ("build-list",): "build every model of a list, and report each outcome",
    ("calibrate",): "find INT8 ranges, and evaluate INT8 with them",
    ("choose",): "find the fastest engine within limits on loss and latency",
    ("compare",): "compare two runs, engines, models or saved outputs",
    ("triage",): "find out why an engine is bad, question by question, down to the smallest case",
    ("report",): "write a run as one HTML page",
    ("export",): "write an engine into a Triton model repository, with a client that checks the server",
    ("gate",): "compare a candidate with the accepted engine, and accept or reject it",
    ("sensitivity",): "measure what each layer costs in INT8",
    ("inspect", "model"): "show an ONNX model, a TensorRT network or an engine",
    ("inspect", "data"): "show saved inputs or outputs, with statistics",
    ("inspect", "diff"): "compare two files of saved outputs",
    ("inspect", "tactics"): "show a tactic record",
    ("inspect", "diff-tactics"): "find the tactic that makes builds bad, from good and bad records",
    ("inspect", "engines"): "compare two engines layer by layer",
    ("inspect", "capability"): "report which parts of a model TensorRT can run",
    ("inspect", "calibration"): "show a calibration cache, or compare two",
    ("inspect", "run"): "show everything a run holds",
    ("check", "lint"): "find what is wrong with an ONNX model, node by node",
    ("check", "compatibility"): "report whether a back end supports a model",
    ("check", "accuracy"): "evaluate saved comparisons with other tolerances",
    ("surgeon", "extract"): "cut a part out of a model",
    ("surgeon", "sanitize"): "fold constants, clean up, change shapes and outputs",
    ("surgeon", "insert"): "insert a node between tensors",
    ("surgeon", "prune"): "make weights 2:4 sparse, or remove types of nodes",
    ("surgeon", "weight-strip"): "remove the weights of a model, to share its structure",
    ("surgeon", "weight-reconstruct"): "put weights back into a stripped model",
    ("debug", "build"): "build repeatedly, check each engine, and sort its files",
    ("debug", "diff-tactics"): "find the tactic that makes builds bad, from good and bad records",
    ("debug", "bisect"): "build mixtures of a good and a bad build until the culprit is known",
    ("debug", "prove"): "test a campaign's suspect by swapping it in and out of builds",
    ("debug", "reduce"): "find the smallest part of a model that still fails",
    ("debug", "precision"): "find the layers that must stay in FP32",
    ("debug", "accuracy"): "find out where an engine goes wrong, tensor by tensor",
    ("debug", "repeat"): "run a command repeatedly, and sort its files",
    ("data", "merge"): "make inputs from saved inputs and outputs",
    ("data", "to-input"): "make inputs from saved inputs and outputs (the same as merge)",
    ("data", "concat"): "concatenate files of saved inputs or outputs",
    ("template", "trt-network"): "write a script that defines or changes a TensorRT network",
    ("template", "trt-config"): "write a script that makes a TensorRT builder config",
    ("template", "onnx-gs"): "write a script that changes a model with ONNX-GraphSurgeon",
    ("plugin", "list"): "count the places where plugins fit",
    ("plugin", "match"): "find the places where plugins fit",
    ("plugin", "replace"): "insert plugins at these places",
    ("runs", "list"): "list runs",
    ("runs", "board"): "show the last verdict of every listed model, on each device and in each precision",
    ("runs", "show"): "show everything a run holds",
    ("runs", "compare"): "show params and numbers of runs side by side",
    ("runs", "evaluate"): "evaluate stored runs with other tolerances",
    ("runs", "audit"): "check runs for consistency, rebuild and grade them",
    ("runs", "prune"): "delete the engines of old runs",
    ("runs", "bundle"): "pack a run into a zip file that reproduces its verdict",
    ("runs", "promote"): "accept a run's engine for all users",
    ("runs", "resolve"): "find the accepted engine for a model on this machine",
    ("runs", "deny"): "put a confirmed culprit on the deny-list",
    ("runs", "close"): "close a run that its dead process left running",
    ("runs", "pardon"): "remove an entry from the deny-list",
    ("certificate", "write"): "write a run's engine into a folder, with signed facts",
    ("certificate", "verify"): "verify a certified engine, without loading it",
    ("store", "reap"): "close the runs of dead processes, and remove their leftovers",
    ("store", "check"): "find problems of a store",
    ("store", "upload"): "upload the runs that were spooled here while the store was away",
    ("store", "ui"): "show the store in MLflow's UI",
    ("team", "up"): "start Prefect, MLflow and a worker",
    ("team", "down"): "end these servers",
    ("team", "status"): "report which servers are up, where, and since when",
    ("team", "env"): "print what a shell needs to use the servers",
    ("team", "password"): "print user and password of a server",
    ("doctor",): "report problems of store, servers, workers, GPU and releases, and how to fix them",
}

# Other names of commands, most of them Polygraphy's.
OTHER_WORDS: dict[Path, Path] = {
    ("inspect", "diff"): ("compare",),
    ("debug", "diff-tactics"): ("inspect", "diff-tactics"),
    ("data", "to-input"): ("data", "merge"),
}

# Commands that log start and end as Polygraphy does (`PASSED`, `FINISHED` or `FAILED`, time and line): scripts search
# for it.
REPORTED = frozenset(
    tuple(words.split())
    for words in (
        "run", "check lint", "check accuracy", "debug build", "debug precision", "debug reduce",
        "debug repeat", "surgeon extract", "surgeon sanitize", "surgeon prune", "surgeon weight-strip",
        "surgeon weight-reconstruct",
    )
)  # fmt: skip

_ONE_GPU = "trtops does not build engines for several GPUs"

# Polygraphy's commands that are known but not supported, with what to do instead.
NOT_SUPPORTED: dict[Path, str] = {
    ("inspect", "sparsity"): "`trtops surgeon prune` makes weights 2:4 sparse; Polygraphy reports which are",
    ("plugin", "autotune"): "Compare engines of models that `trtops plugin replace` makes, with `trtops runs compare`",
    ("template", "shard-hints"): f"{_ONE_GPU}. Write the hints by hand, or with Polygraphy",
    ("multi-device", "shard"): f"{_ONE_GPU}. Split the model with `trtops surgeon extract`, and build the parts",
}

VARIABLES = {
    "TRTOPS_HOME": "folder of the tracking store (default: ./mlruns)",
    "MLFLOW_TRACKING_URI": "an MLflow server to use instead",
    "TRTOPS_CREDENTIALS": "a file with user and password for that server",
    "TRTOPS_TRACKING_WAIT": "seconds to wait for a store that does not answer (default: 25)",
    "TRTOPS_SPOOL": "runs that the store could not take (default: of a server <TRTOPS_HOME>/spool, else in TMPDIR)",
    "TRTOPS_USE_TENSORRT_RTX": "1: use TensorRT-RTX instead of TensorRT",
    "TRTOPS_ARRAY_SWAP_THRESHOLD_MB": "larger saved arrays move to a temporary file",
    "TRTOPS_ALLOWED_SCRIPTS": "folders, separated by ':'; scripts, check commands and plugins elsewhere are not run",
    "TRTOPS_ARTIFACT_HOSTS": "further hosts, separated by commas, where a server may keep its artifacts",
    "TRTOPS_MEMORY_LIMIT": "memory for reading a file, beyond the file's own size (default: 1792M)",
    "TRTOPS_TIME_LIMIT": "seconds that loading a model, or one inference, may take (default: 600; to lint or fold: 30)",
    "TRTOPS_ALLOW_HOST_CODE": "1: version compatible TensorRT engines may run their own code on this machine",
    "NO_COLOR": "any value: no colors",
}


def below(folder: Path) -> dict[str, str]:
    """Return the possible words after these, with a line about each."""
    lines: dict[str, str] = {}
    for path, line in (*COMMANDS.items(), *FOLDERS.items()):
        if path[:-1] == folder:
            lines[path[-1]] = line
    return lines


def find(words: list[str]) -> tuple[Path, list[str]]:
    """Return the longest command or folder at the start of a line, and the words after it."""
    path: Path = ()
    for word in words:
        if (*path, word) not in COMMANDS and (*path, word) not in FOLDERS:
            break
        path = (*path, word)
    return path, words[len(path) :]
