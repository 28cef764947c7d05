"""Repeat the verdict of an engine on a running Triton server. ``trtops export`` copies this file into the repository.

``python client.py --url localhost:8000`` sends the inputs of the evaluation alone and at once, in batches of many
sizes, and compares the answers with the golden outputs. It needs numpy and ``tritonclient[http]``, or with ``--grpc``
``tritonclient[grpc]``. The exit code is 0 if the verdict is good.
"""

# Nothing of trtops may be imported here: this file is copied to where trtops is not.
import argparse
import importlib
import json
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Arrays = dict[str, Any]


class Request(NamedTuple):
    """Rows of one feed; all of them, as a whole, if Triton does not batch."""

    feed: int
    start: int | None = None
    end: int | None = None

    @property
    def rows(self) -> slice:
        """The rows in the feed."""
        return slice(self.start, self.end)


class Client:
    """A model on a server, with a connection for each thread."""

    def __init__(self, url: str, model: str, version: str, *, grpc: bool) -> None:
        self._library = importlib.import_module(f"tritonclient.{'grpc' if grpc else 'http'}")
        self._utils = importlib.import_module("tritonclient.utils")
        self.error = self._utils.InferenceServerException
        self._url, self.model, self.version, self._grpc, self._local = url, model, version, grpc, threading.local()

    @property
    def _server(self) -> Any:
        if not hasattr(self._local, "server"):
            self._local.server = self._library.InferenceServerClient(self._url)
        return self._local.server

    def tensors(self) -> tuple[list[str], list[str], int]:
        """Return names of inputs and outputs, and the largest batch, as the server states them."""
        if not self._server.is_model_ready(self.model, self.version):
            raise RuntimeError(f"the server at {self._url} does not serve {self.model} {self.version}")
        options = {"as_json": True} if self._grpc else {}
        metadata = self._server.get_model_metadata(self.model, self.version, **options)
        config = self._server.get_model_config(self.model, self.version, **options)
        names = [[tensor["name"] for tensor in metadata[group]] for group in ("inputs", "outputs")]
        return names[0], names[1], int(config.get("config", config).get("max_batch_size", 0))

    def infer(self, feed: Arrays, outputs: list[str]) -> Arrays:
        """Return the outputs of one request."""
        inputs = []
        for name, array in feed.items():
            array = array.astype(object if array.dtype.kind == "U" else array.dtype).reshape(array.shape or (1,))
            tensor = self._library.InferInput(name, array.shape, self._utils.np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(np.ascontiguousarray(array))
            inputs.append(tensor)
        wanted = [self._library.InferRequestedOutput(name) for name in outputs]
        answer = self._server.infer(self.model, inputs, model_version=self.version, outputs=wanted)
        arrays = {name: answer.as_numpy(name) for name in outputs}
        return {name: np.char.decode(a.astype(bytes)) if a.dtype == object else a for name, a in arrays.items()}


class Case:
    """Inputs, golden outputs and limits of an evaluation."""

    def __init__(self, folder: Path) -> None:
        sys.path.insert(0, str(folder))
        self._objections = importlib.import_module("evaluate").objections  # another file of this folder
        content = json.loads((folder / "case.json").read_text(encoding="utf-8"))
        self.inputs, self.outputs, self._rules = content["inputs"], content["outputs"], content["rules"]
        arrays = [np.load(folder / name, allow_pickle=False) for name in ("inputs.npz", "golden.npz")]
        indices = range(content["iterations"])
        self.feeds = [{name: arrays[0][f"{i}_{j}"] for j, name in enumerate(self.inputs)} for i in indices]
        self.golden = [{name: arrays[1][f"{i}_{j}"] for j, name in enumerate(self.outputs)} for i in indices]

    def requests(self, largest: int, order: random.Random) -> list[Request]:
        """Return requests for each row once, in batches of random sizes; one for each feed without batches."""
        requests = []
        for index, feed in enumerate(self.feeds):
            start, rows = 0, len(next(iter(feed.values()))) if largest else 0
            while start < rows:
                size = order.randint(1, min(largest, rows - start))
                requests.append(Request(index, start, start + size))
                start += size
            requests += [] if largest else [Request(index)]
        return requests

    def feed(self, request: Request) -> Arrays:
        """Return the inputs of a request."""
        feed = self.feeds[request.feed]
        return {name: array[request.rows] if array.ndim else array for name, array in feed.items()}

    def faults(self, answers: dict[Request, Arrays], largest: int) -> list[str]:
        """Return what is wrong with the answers to some requests."""
        faults = []
        for name in self.outputs:
            golden = [outputs[name] if outputs[name].ndim else outputs[name].reshape(1) for outputs in self.golden]
            actual = {request: answers[request][name] for request in sorted(answers)}
            shapes = {request: golden[request.feed][request.rows].shape for request in actual}
            if wrong := [request for request, output in actual.items() if output.shape != shapes[request]]:
                shape = actual[wrong[0]].shape
                faults.append(f"{name}: {len(wrong)} answers have wrong shapes, such as {shape} for {shapes[wrong[0]]}")
                continue
            parts = [[output for request, output in actual.items() if request.feed == i] for i in range(len(golden))]
            whole = [np.concatenate(outputs) if largest else outputs[0] for outputs in parts]
            swapped = _swapped(*(np.concatenate(rows) if largest else rows for rows in (whole, golden)))
            faults += [f"{name}: {swapped} answers belong to other requests"] if swapped else []
            faults += [f"{name}: {text}" for text in self._objections(whole, golden, self._rules[name])]
        return faults


def _swapped(actual: Any, golden: Any) -> int:
    """Return how many answers are much nearer to the golden outputs of others than to their own."""
    if np.asarray(golden[0]).dtype.kind not in "fiub":
        return 0
    swapped = 0
    for row, own in zip(actual, golden):
        others = np.array([other for other in golden if other.shape == own.shape], np.float64)
        distances = np.abs(others - row).reshape(len(others), -1).max(axis=1, initial=0.0)
        swapped += bool(4 * distances.min() < np.abs(row - own.astype(np.float64)).max(initial=0.0))
    return swapped


def verdict(client: Client, case: Case, concurrencies: list[int], repeats: int, seed: int = 0) -> str:
    """Print what is wrong with a server's answers, and return the verdict."""
    inputs, outputs, largest = client.tensors()
    faults = []
    if sorted(inputs) != sorted(case.inputs) or not set(case.outputs) <= set(outputs):
        print(f"The server states {inputs} and {outputs}; expected {case.inputs} and {case.outputs}.")
        return "bad"
    order = random.Random(seed)
    for concurrency in concurrencies:
        rounds, sent = list[list[Request]](), list[tuple[int, Request]]()
        while len(rounds) < repeats or len(sent) < concurrency:
            rounds.append(case.requests(largest, order))
            sent += [(len(rounds), request) for request in rounds[-1]]
        order.shuffle(sent)
        with ThreadPoolExecutor(concurrency) as pool:
            answers = pool.map(lambda item: client.infer(case.feed(item[1]), case.outputs), sent)
            objections = list[str]()
            try:
                received = dict(zip(sent, answers))
                for number, requests in enumerate(rounds, start=1):
                    objections += case.faults({request: received[number, request] for request in requests}, largest)
            except client.error as exc:
                objections = [f"the server reports {exc}"]
        faults += objections
        print(f"{len(sent)} requests, {concurrency} at once: {'; '.join(dict.fromkeys(objections)) or 'good'}")
    if largest:
        feed = {name: np.resize(array, (largest + 1, *array.shape[1:])) for name, array in case.feeds[0].items()}
        try:
            client.infer(feed, case.outputs)
            faults.append(f"a request of {largest + 1} rows is answered, and the largest batch is {largest}")
            print(faults[-1])
        except client.error:
            print(f"a request of {largest + 1} rows is refused: good")
    if faults:
        return "bad"
    arrays = [np.atleast_1d(golden[case.outputs[0]]) for golden in case.golden]
    if len({answer.tobytes() for array in arrays for answer in (array if largest else [array])}) < 2:
        print("All requests have the same golden output, so answers to other requests would not show.")
        return "unproven"
    return "good"


def main() -> int:
    """Run the command line; returns the exit code."""
    folder = Path(__file__).resolve().parent
    versions = [int(path.name) for path in folder.parent.iterdir() if path.name.isdigit()]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="localhost:8000", help="host and port (default: %(default)s)")
    parser.add_argument("--grpc", action="store_true", help="use gRPC, which is usually on port 8001")
    parser.add_argument("--model", default=folder.parent.name, help="name on the server (default: %(default)s)")
    parser.add_argument("--version", default=str(max(versions, default="")), help="version (default: %(default)s)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 16], help="requests at once")
    parser.add_argument("--repeats", type=int, default=4, help="least rounds of all inputs (default: %(default)s)")
    options = parser.parse_args()
    try:
        client = Client(options.url, options.model, options.version, grpc=options.grpc)
        word = verdict(client, Case(folder), options.concurrency, options.repeats)
    except Exception as exc:  # those of the client's libraries have no common base
        sys.exit(f"{options.model} at {options.url} was not checked ({type(exc).__name__}: {exc}).")
    print(f"verdict: {word} ({options.model} {options.version} at {options.url})")
    return int(word != "good")


if __name__ == "__main__":
    sys.exit(main())
