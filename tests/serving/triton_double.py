"""A double of Triton: a small server that follows KServe's protocol v2 over HTTP and gRPC, and batches requests.

It reads the repository as Triton does (configuration, newest version), runs the engine with ONNX Runtime on the
processor, and can have one fault. It says nothing about Triton itself.
"""

import contextlib
import json
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime as ort
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor, triton_to_np_dtype

Arrays = dict[str, np.ndarray]
FAULTS = (
    "rows swapped between requests", "rows reversed", "stale outputs", "padding leaks", "last row of a full batch lost",
    "outputs of the first request for all", "float64 outputs", "outputs swapped", "larger batches accepted",
    "inputs of another request", "error under load", "short batches are rounded", "another model",
)  # fmt: skip


class Served:
    """The newest version of a model, with a batcher and at most one fault."""

    def __init__(self, folder: Path, fault: str = "") -> None:
        self.config = text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
        self.version = max(int(path.name) for path in folder.iterdir() if path.name.isdigit())
        engine = folder / str(self.version) / self.config.default_model_filename
        self._session = ort.InferenceSession(engine, providers=["CPUExecutionProvider"])
        self._fault, self._last, self._lock, self._busy = fault, None, threading.Lock(), 0
        self._queue: queue.Queue[tuple[Arrays, Future[Arrays]]] = queue.Queue()
        threading.Thread(target=self._serve, daemon=True).start()

    def metadata(self) -> dict[str, Any]:
        tensors = {}
        for group in ("input", "output"):
            batch = [-1] if self.config.max_batch_size else []
            tensors[f"{group}s"] = [
                {
                    "name": tensor.name,
                    "datatype": model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_"),
                    "shape": [*batch, *tensor.dims],
                }
                for tensor in getattr(self.config, group)
            ]
        return {"name": self.config.name, "versions": [str(self.version)], "platform": self.config.platform, **tensors}

    def infer(self, inputs: Arrays) -> Arrays:
        """Answer one request; ValueError if it is too large."""
        rows, largest = len(next(iter(inputs.values()))), self.config.max_batch_size
        if largest and rows > largest and self._fault != "larger batches accepted":
            raise ValueError(f"[request] inference request batch-size must be <= {largest} for '{self.config.name}'")
        answer: Future[Arrays] = Future()
        self._queue.put((inputs, answer))
        return answer.result(30)

    def _serve(self) -> None:
        while True:
            group, waiting = [self._queue.get()], bool(self.config.max_batch_size)
            rows = len(next(iter(group[0][0].values())))
            until = time.monotonic() + 0.003
            while waiting and rows < self.config.max_batch_size:
                with contextlib.suppress(queue.Empty):
                    group.append(self._queue.get(timeout=max(until - time.monotonic(), 0)))
                    rows += len(next(iter(group[-1][0].values())))
                    continue
                break
            try:
                self._answer(group)
            except Exception as exc:
                for _, answer in group:
                    answer.set_exception(exc)

    def _run(self, inputs: Arrays) -> Arrays:
        names = [output.name for output in self._session.get_outputs()]
        return dict(zip(names, self._session.run(names, inputs)))

    def _answer(self, group: list[tuple[Arrays, "Future[Arrays]"]]) -> None:
        if not self.config.max_batch_size:
            group[0][1].set_result(self._broken_single(self._run(group[0][0])))
            return
        requests = [inputs for inputs, _ in group]
        if self._fault == "inputs of another request" and len(requests) > 1:
            requests[1] = {name: np.resize(requests[0][name], array.shape) for name, array in requests[1].items()}
        if self._fault == "error under load" and len(requests) > 2:
            raise ValueError("CUDA error: an illegal memory access was encountered")
        sizes = [len(next(iter(inputs.values()))) for inputs in requests]
        outputs = self._run({name: np.concatenate([inputs[name] for inputs in requests]) for name in requests[0]})
        outputs = self._broken(outputs, sizes)
        ends = np.cumsum(sizes)
        answers = [{name: array[end - size : end] for name, array in outputs.items()} for size, end in zip(sizes, ends)]
        if self._fault == "outputs of the first request for all":
            answers = [{n: np.resize(answers[0][n], a.shape) for n, a in answer.items()} for answer in answers]
        if self._fault == "padding leaks":
            answers[-1] = {name: np.concatenate([array, 0 * array[:1]]) for name, array in answers[-1].items()}
        for (_, future), answer in zip(group, answers):
            future.set_result(answer)

    def _broken_single(self, outputs: Arrays) -> Arrays:
        """The outputs of a model without batches."""
        previous, self._last = self._last, outputs
        return previous if self._fault == "stale outputs" and previous is not None else outputs

    def _broken(self, outputs: Arrays, sizes: list[int]) -> Arrays:
        rows = sum(sizes)
        names = list(outputs)
        if self._fault == "rows swapped between requests" and len(sizes) > 1:
            order = [*range(1, rows), 0]
            outputs = {name: array[order] for name, array in outputs.items()}
        elif self._fault == "rows reversed":
            outputs = {name: array[::-1] for name, array in outputs.items()}
        elif self._fault == "stale outputs":
            previous, self._last = self._last, outputs
            if previous is not None:
                outputs = {name: np.resize(previous[name], array.shape) for name, array in outputs.items()}
        elif self._fault == "last row of a full batch lost" and rows >= self.config.max_batch_size:
            outputs = {name: np.concatenate([array[:-1], 0 * array[-1:]]) for name, array in outputs.items()}
        elif self._fault == "float64 outputs":
            outputs = {name: array.astype(np.float64) for name, array in outputs.items()}
        elif self._fault == "outputs swapped":
            outputs = dict(zip(names, [outputs[name] for name in reversed(names)]))
        elif self._fault == "short batches are rounded" and rows < self.config.max_batch_size:
            outputs = {name: np.round(array, 1) for name, array in outputs.items()}
        elif self._fault == "another model":
            outputs = {name: array + np.float32(0.1) for name, array in outputs.items()}
        return outputs


@contextlib.contextmanager
def serving(folder: Path, fault: str = "") -> Iterator[tuple[str, str]]:
    """Serve a model of a repository; yields the addresses for HTTP and gRPC."""
    served = Served(folder, fault)
    http = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"served": served}))
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
    server = grpc.server(ThreadPoolExecutor(16))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Service(served), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{http.server_port}", f"127.0.0.1:{port}"
    finally:
        http.shutdown()
        http.server_close()
        server.stop(None)


def _array(data: bytes, datatype: str, shape: Any) -> np.ndarray:
    if datatype == "BYTES":
        return np.char.decode(deserialize_bytes_tensor(data).astype(bytes)).astype(object).reshape(tuple(shape))
    return np.frombuffer(data, triton_to_np_dtype(datatype)).reshape(tuple(shape))


_NAMES = {"float32": "FP32", "float16": "FP16", "float64": "FP64", "bool": "BOOL", "object": "BYTES"}


def _datatype(array: np.ndarray) -> str:
    return _NAMES.get(array.dtype.name) or array.dtype.name.upper()


def _content(array: np.ndarray) -> bytes:
    return bytes(serialize_byte_tensor(array).item()) if array.dtype == object else array.tobytes()


class _Handler(BaseHTTPRequestHandler):
    served: Served
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise each answer takes 40 ms

    def log_message(self, *args: Any) -> None:
        pass

    def _send(self, code: int, content: Any, binary: bytes = b"") -> None:
        header = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(header) + len(binary)))
        if binary:
            self.send_header("Inference-Header-Content-Length", str(len(header)))
        self.end_headers()
        self.wfile.write(header + binary)

    def do_GET(self) -> None:
        place = f"/v2/models/{self.served.config.name}/versions/{self.served.version}"
        answers = {
            f"{place}/ready": {},
            place: self.served.metadata(),
            f"{place}/config": json_format.MessageToDict(self.served.config, preserving_proto_field_name=True),
        }
        self._send(200 if self.path in answers else 404, answers.get(self.path, {"error": f"unknown {self.path}"}))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        end = int(self.headers.get("Inference-Header-Content-Length", len(body)))
        request, inputs = json.loads(body[:end]), {}
        for tensor in request["inputs"]:
            size = tensor["parameters"]["binary_data_size"]
            inputs[tensor["name"]] = _array(body[end : end + size], tensor["datatype"], tensor["shape"])
            end += size
        try:
            outputs = self.served.infer(inputs)
        except Exception as exc:
            self._send(400, {"error": str(exc)})
            return
        arrays = {output["name"]: np.ascontiguousarray(outputs[output["name"]]) for output in request["outputs"]}
        contents = list(map(_content, arrays.values()))
        described = [
            {
                "name": name,
                "datatype": _datatype(array),
                "shape": array.shape,
                "parameters": {"binary_data_size": len(content)},
            }
            for (name, array), content in zip(arrays.items(), contents)
        ]
        self._send(200, {"model_name": "m", "outputs": described}, b"".join(contents))


class _Service(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, served: Served) -> None:
        self._served = served

    def ModelReady(self, request: Any, context: Any) -> Any:
        expected = (self._served.config.name, str(self._served.version))
        return service_pb2.ModelReadyResponse(ready=(request.name, request.version) == expected)

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        return json_format.ParseDict(self._served.metadata(), service_pb2.ModelMetadataResponse())

    def ModelConfig(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelConfigResponse(config=self._served.config)

    def ModelInfer(self, request: Any, context: Any) -> Any:
        inputs = {}
        for tensor, content in zip(request.inputs, request.raw_input_contents):
            inputs[tensor.name] = _array(content, tensor.datatype, tensor.shape)
        try:
            outputs = self._served.infer(inputs)
        except Exception as exc:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
        answer = service_pb2.ModelInferResponse(model_name=request.model_name, model_version=request.model_version)
        for output in request.outputs:
            array = np.ascontiguousarray(outputs[output.name])  # with one dimension at least, as Triton's
            answer.outputs.add(name=output.name, datatype=_datatype(array), shape=array.shape)
            answer.raw_output_contents.append(_content(array))
        return answer
