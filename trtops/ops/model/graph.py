"""A model as a picture: one self-contained HTML page, to save or serve (``inspect model --visual``)."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtops import errors
from trtops.backend.onnx import summary
from trtops.backend.onnx.parsing import read_proto
from trtops.backend.onnx.summary import ModelSummary

if TYPE_CHECKING:
    import onnx

_WIDTH, _GAP, _HEIGHT, _ROW = 190, 26, 40, 86
_SWEEPS = 4


@dataclass(frozen=True, kw_only=True)
class Box:
    """One node of the picture, with the tensors that it reads and produces."""

    title: str  # an operator or layer type, ``input`` or ``output``
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    details: tuple[str, ...]  # lines that are shown when it is clicked


def describe_onnx(model: str | Path | onnx.ModelProto, *, infer_shapes: bool = False) -> ModelSummary:
    """Describe an ONNX model for :func:`model_page`; weights are not read."""
    proto = read_proto(model) if isinstance(model, (str, Path)) else model
    return summary.describe(proto, infer_shapes=infer_shapes)


def boxes(described: Any) -> list[Box]:
    """The inputs, nodes and outputs of a described ONNX model, TensorRT network or engine."""
    graph = getattr(described, "graph", described)
    found = [Box(title="input", name=s.name, inputs=(), outputs=(s.name,), details=(str(s),)) for s in graph.inputs]
    for node in getattr(graph, "nodes", ()) or getattr(graph, "layers", ()):
        details = []
        for title, specs in (("reads", node.inputs), ("produces", node.outputs)):
            for spec in specs:
                text = f"{spec.name} [{spec.dtype}, {spec.shape}]" if hasattr(spec, "format") else str(spec)
                details += [f"{title} {text}"] if spec.name else []
        attributes: Any = getattr(node, "attributes", ()) or getattr(node, "attrs", ())
        details += [f"{name} = {value}" for name, value in attributes]
        details += [f"{field}: {value}" for field in ("tactic", "precision") if (value := getattr(node, field, ""))]
        found.append(
            Box(
                title=node.op or "layer",
                name=node.name or next((spec.name for spec in node.outputs), ""),
                inputs=tuple(spec.name for spec in node.inputs if spec.name),
                outputs=tuple(spec.name for spec in node.outputs if spec.name),
                details=tuple(details),
            )
        )
    found += [Box(title="output", name=s.name, inputs=(s.name,), outputs=(), details=(str(s),)) for s in graph.outputs]
    return found


def places(found: Sequence[Box]) -> list[tuple[int, int]]:
    """The column and row of each box, which is below all boxes that it reads from.

    Within a row, boxes are sorted by the mean column of their neighbors, in a few sweeps down and up.
    """
    maker = {tensor: index for index, box in enumerate(found) for tensor in box.outputs}
    before = [sorted({maker[t] for t in box.inputs if t in maker and maker[t] != i}) for i, box in enumerate(found)]
    after: list[list[int]] = [[] for _ in found]
    rows = [0] * len(found)
    for index, makers in enumerate(before):  # in order of execution, so that makers come first
        rows[index] = 1 + max((rows[m] for m in makers if m < index), default=-1)
        for made_by in makers:
            after[made_by].append(index)
    columns = [0] * len(found)
    by_row: list[list[int]] = [[] for _ in range(max(rows, default=-1) + 1)]
    for index, row in enumerate(rows):
        columns[index] = len(by_row[row])
        by_row[row].append(index)
    for sweep in range(_SWEEPS):
        near = before if sweep % 2 == 0 else after
        for members in by_row if sweep % 2 == 0 else reversed(by_row):
            means = {i: sum(columns[j] for j in near[i]) / len(near[i]) if near[i] else columns[i] for i in members}
            members.sort(key=means.__getitem__)
            for column, index in enumerate(members):
                columns[index] = column
    return list(zip(columns, rows))


def model_page(described: Any, title: str) -> str:
    """A described model as an HTML page: drag to move, scroll to zoom, click for details, type to find."""
    found = boxes(described)
    if not found:
        raise errors.InvalidModelError(f"{title} has neither inputs nor nodes; there is nothing to draw.")
    at = places(found)
    widest = max(column for column, _ in at) + 1
    in_row: dict[int, int] = {}
    for _, row in at:
        in_row[row] = in_row.get(row, 0) + 1
    # Rows are centered.
    points = [(round((column + (widest - in_row[row]) / 2) * (_WIDTH + _GAP)), row * _ROW) for column, row in at]
    size = widest * (_WIDTH + _GAP), (max(row for _, row in at) + 1) * _ROW
    details = json.dumps([[box.title, box.name, *box.details] for box in found]).replace("<", "\\u003c")
    drawn = "".join(_drawn(found, points))
    parts = {"TITLE": html.escape(title), "SIZE": f"{size[0]} {size[1]}", "DETAILS": details, "DRAWN": drawn}
    return re.sub("@([A-Z]+)@", lambda found: parts[found[1]], _PAGE)


def _drawn(found: Sequence[Box], points: Sequence[tuple[int, int]]) -> Iterator[str]:
    """SVG elements of the edges, then of the boxes, which cover them."""
    maker = {tensor: index for index, box in enumerate(found) for tensor in box.outputs}
    for index, box in enumerate(found):
        for tensor in dict.fromkeys(box.inputs):
            if tensor in maker and maker[tensor] != index:
                (x, y), (to_x, to_y) = points[maker[tensor]], points[index]
                x, to_x, y = x + _WIDTH // 2, to_x + _WIDTH // 2, y + _HEIGHT
                bend = max((to_y - y) // 2, 16)
                path = f"M{x} {y}C{x} {y + bend} {to_x} {to_y - bend} {to_x} {to_y}"
                yield f'<path d="{path}"><title>{html.escape(tensor)}</title></path>'
    for index, (box, (x, y)) in enumerate(zip(found, points)):
        kind = " class=io" if box.title in ("input", "output") else ""
        title, name = (
            html.escape(text if len(text) <= 28 else f"{text[:12]}…{text[-15:]}") for text in (box.title, box.name)
        )
        yield (
            f'<g id=n{index}{kind} transform="translate({x} {y})"><rect width={_WIDTH} height={_HEIGHT} rx=5 />'
            f"<text x=8 y=16 class=op>{title}</text><text x=8 y=32>{name}</text></g>"
        )


def serve_page(text: str, port: int, ready: Callable[[str], object]) -> None:
    """Serve a page to browsers on this machine until the process is interrupted.

    Port 0 takes any free port. ``ready`` is called with the page's address once it is served.
    """
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # as slow to import as drawing is

    data = text.encode()

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/" else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(data) if self.path == "/" else 0))
            self.end_headers()
            if self.path == "/":
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Requests are not logged."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Page)
    except (OSError, OverflowError) as exc:
        why = exc.strerror if isinstance(exc, OSError) else exc
        raise errors.ConfigError(f"Port {port} cannot be used: {why}; give another, or 0 for any.") from None
    with server:
        ready(f"http://127.0.0.1:{server.server_address[1]}/")
        server.serve_forever(poll_interval=0.1)


_PAGE = """<!doctype html><html lang=en><meta charset=utf-8><title>@TITLE@</title>
<style>
html,body{margin:0;height:100%;overflow:hidden;font:13px system-ui,sans-serif;background:#fafafa;color:#222}
#bar{position:fixed;top:0;left:0;padding:8px;background:#fffd;border-radius:0 0 6px 0}
#info{position:fixed;top:0;right:0;max-width:38%;max-height:96%;overflow:auto;padding:10px;background:#fffe;
white-space:pre-wrap;border-left:1px solid #ddd;overflow-wrap:anywhere}
svg{display:block;width:100%;height:100%;cursor:grab}rect{fill:#fff;stroke:#888}path{fill:none;stroke:#999}
g.io rect{fill:#e8f1fb}g.hit rect{fill:#ffe9a8}g.on rect{stroke:#d60;stroke-width:3}
.op{font-weight:600}text{font-size:12px}
</style>
<svg id=s viewBox="-20 -60 @SIZE@" preserveAspectRatio="xMidYMin meet">@DRAWN@</svg>
<div id=bar><b>@TITLE@</b> <input id=q placeholder="find by name or type"> <span id=c></span></div>
<div id=info hidden></div>
<script>
const info=@DETAILS@,s=document.getElementById('s'),v=s.viewBox.baseVal,box=i=>document.getElementById('n'+i);
if(v.width/v.height>3||v.height/v.width>3){v.width=Math.min(v.width,1600);v.height=Math.min(v.height,1000)}
const scale=()=>Math.max(v.width/s.clientWidth,v.height/s.clientHeight);
let drag=null,hits=[],at=-1;
s.onpointerdown=e=>{drag=[e.clientX,e.clientY,v.x,v.y]};
onpointermove=e=>{if(drag){v.x=drag[2]-(e.clientX-drag[0])*scale();v.y=drag[3]-(e.clientY-drag[1])*scale()}};
onpointerup=()=>{drag=null};
s.onwheel=e=>{e.preventDefault();const f=e.deltaY>0?1.15:1/1.15,r=s.getBoundingClientRect(),
 x=(e.clientX-r.left)/r.width,y=(e.clientY-r.top)/r.height;v.x+=v.width*x*(1-f);v.y+=v.height*y*(1-f);v.width*=f;v.height*=f};
function show(i){document.querySelectorAll('.on').forEach(g=>g.classList.remove('on'));box(i).classList.add('on');
 const t=document.getElementById('info');t.hidden=false;t.textContent=info[i].join('\\n')}
s.onclick=e=>{const g=e.target.closest('g');if(g)show(+g.id.slice(1))};
const q=document.getElementById('q');
q.oninput=()=>{const w=q.value.toLowerCase();hits=[];at=-1;
 info.forEach((d,i)=>{const hit=w&&(d[0]+' '+d[1]).toLowerCase().includes(w);
 box(i).classList.toggle('hit',!!hit);if(hit)hits.push(i)});
 document.getElementById('c').textContent=w?hits.length+' found':''};
q.onkeydown=e=>{if(e.key==='Enter'&&hits.length){at=(at+1)%hits.length;show(hits[at]);
 const m=box(hits[at]).transform.baseVal[0].matrix;v.x=m.e+95-v.width/2;v.y=m.f+20-v.height/2}};
</script></html>
"""
