"""A model as a picture: one self-contained HTML page, to save or serve (``inspect model --visual``)."""

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trtops import errors

_WIDTH, _GAP, _HEIGHT, _ROW = 190, 26, 40, 86

_STYLE = (
    "body{font:12px system-ui,sans-serif;margin:8px}rect{fill:#fff;stroke:#888}path{fill:none;stroke:#999}"
    "g.io rect{fill:#e8f1fb}g:hover rect{stroke:#d60;stroke-width:3}.op{font-weight:600}"
)


@dataclass(frozen=True, kw_only=True)
class Box:
    """One node of the picture, with the tensors that it reads and produces."""

    title: str  # an operator or layer type, ``input`` or ``output``
    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    details: tuple[str, ...]  # lines that are shown under the pointer


def boxes(described: Any) -> list[Box]:
    """The inputs, nodes and outputs of a described ONNX model, TensorRT network or engine."""
    graph = getattr(described, "graph", described)
    found = [Box(title="input", name=s.name, outputs=(s.name,), details=(str(s),)) for s in graph.inputs]
    for node in getattr(graph, "nodes", ()) or getattr(graph, "layers", ()):
        details = []
        for title, specs in (("reads", node.inputs), ("produces", node.outputs)):
            for spec in specs:
                text = f"{spec.name} [{spec.dtype}, {spec.shape}]" if hasattr(spec, "format") else str(spec)
                details += [f"{title} {text}"] if spec.name else []
        attributes: Any = getattr(node, "attributes", ()) or getattr(node, "attrs", ())
        details += [f"{name} = {value}" for name, value in attributes]
        # An engine's layer has no attributes; these are what people look for.
        details += [f"{field}: {value}" for field in ("tactic", "precision") if (value := getattr(node, field, ""))]
        inputs, outputs = (tuple(s.name for s in specs if s.name) for specs in (node.inputs, node.outputs))
        name = node.name or next(iter(outputs), "")
        found.append(Box(title=node.op or "layer", name=name, inputs=inputs, outputs=outputs, details=tuple(details)))
    return found + [Box(title="output", name=s.name, inputs=(s.name,), details=(str(s),)) for s in graph.outputs]


def places(found: Sequence[Box]) -> list[tuple[float, int]]:
    """The column and row of each box, which is below all boxes that it reads from."""
    maker = {tensor: index for index, box in enumerate(found) for tensor in box.outputs}
    before = [{maker[t] for t in box.inputs if maker.get(t, index) < index} for index, box in enumerate(found)]
    rows: list[int] = []
    for makers in before:  # in order of execution
        rows.append(1 + max((rows[m] for m in makers), default=-1))
    by_row: list[list[int]] = [[] for _ in range(max(rows, default=-1) + 1)]
    for index, row in enumerate(rows):
        by_row[row].append(index)
    # Each row is sorted by the mean column of what its boxes read, so that most edges run straight down.
    widest = max(map(len, by_row), default=0)
    columns = [0.0] * len(found)
    for members in by_row:
        means = {i: sum(columns[m] for m in before[i]) / max(len(before[i]), 1) for i in members}
        for place, index in enumerate(sorted(members, key=means.__getitem__)):
            columns[index] = place + (widest - len(members)) / 2  # rows are centered
    return list(zip(columns, rows))


def model_page(described: Any, title: str) -> str:
    """A described model as an HTML page: a drawing to scroll, zoom and search with the browser, details as tooltips."""
    found = boxes(described)
    if not found:
        raise errors.InvalidModelError(f"{title} has neither inputs nor nodes; there is nothing to draw.")
    points = [(round(column * (_WIDTH + _GAP)) + 2, row * _ROW + 2) for column, row in places(found)]
    maker = {tensor: index for index, box in enumerate(found) for tensor in box.outputs}
    edges, drawn = [], []
    for index, (box, (x, y)) in enumerate(zip(found, points)):
        for tensor in dict.fromkeys(box.inputs):
            if maker.get(tensor, index) != index:
                start_x, start_y = points[maker[tensor]]
                start_x, start_y, end_x = start_x + _WIDTH // 2, start_y + _HEIGHT, x + _WIDTH // 2
                bend = max((y - start_y) // 2, 16)
                curve = f"M{start_x} {start_y}C{start_x} {start_y + bend} {end_x} {y - bend} {end_x} {y}"
                edges.append(f'<path d="{curve}"><title>{html.escape(tensor)}</title></path>')
        kind = " class=io" if box.title in ("input", "output") else ""
        op, name = (
            html.escape(text if len(text) <= 28 else f"{text[:12]}…{text[-15:]}") for text in (box.title, box.name)
        )
        drawn.append(
            f'<g id=n{index}{kind} transform="translate({x} {y})">'
            f"<title>{html.escape(chr(10).join((box.title, box.name, *box.details)))}</title>"
            f"<rect width={_WIDTH} height={_HEIGHT} rx=5 />"
            f"<text x=8 y=16 class=op>{op}</text><text x=8 y=32>{name}</text></g>"
        )
    width, height = (max(each) for each in zip(*points))
    name = html.escape(title)
    # Edges come first, so that boxes cover them.
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{name}</title><style>{_STYLE}</style><h1>{name}</h1>"
        f"<svg width={width + _WIDTH + 4} height={height + _HEIGHT + 4}>{''.join(edges + drawn)}</svg></html>\n"
    )


def serve_page(text: str, port: int, ready: Callable[[str], object]) -> None:
    """Serve a page to browsers on this machine until the process is interrupted.

    Port 0 takes any free port. ``ready`` is called with the page's address once it is served.
    """
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # slow to import

    data = text.encode()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = data if self.path == "/" else b""
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(found)))
            self.end_headers()
            self.wfile.write(found)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not logged."""

    try:
        # Only for this machine: models are often secret.
        server = ThreadingHTTPServer(("127.0.0.1", port), Page)
    except (OSError, OverflowError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise errors.ConfigError(f"Port {port} cannot be used: {why}; give another, or 0 for any.") from None
    with server:
        ready(f"http://127.0.0.1:{server.server_address[1]}/")
        # Polled often, so that Ctrl-C ends it at once.
        server.serve_forever(poll_interval=0.1)
