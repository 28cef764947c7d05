"""Pictures of a run inside a page: SVG as a part of it, so that its text can be found, PNG as data.

A store's SVG is taken apart and only what draws is put together again: no script, no style sheet, nothing fetched.
"""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ElementTree

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_DRAWING = {
    "svg", "g", "defs", "path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "text", "tspan", "use", "image",
    "clipPath", "linearGradient", "stop",
}  # fmt: skip
_PLAIN = {
    "id", "d", "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "rx", "ry", "width", "height", "viewBox", "points",
    "transform", "preserveAspectRatio", "offset", "clipPathUnits", "gradientUnits",
}  # fmt: skip
_SHEET = {
    "fill", "stroke", "stroke-width", "stroke-linecap", "stroke-linejoin", "stroke-dasharray", "stroke-dashoffset",
    "opacity", "fill-opacity", "stroke-opacity", "font", "font-size", "font-family", "font-weight", "text-anchor",
    "stop-color", "image-rendering", "stroke-miterlimit",
}  # fmt: skip
_VALUE = re.compile(r"[\w\s.,#%()'+-]*")
_LINK = re.compile(r"#[\w.:-]+")
_RASTER = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=\s]*")
_LARGEST = 16 << 20


def picture(data: bytes, name: str, prefix: str) -> tuple[str, str] | None:
    """A picture as ``("svg", markup)`` or ``("png", address)``; None for anything else.

    Args:
        data: The file's bytes.
        name: The file's name.
        prefix: What its ids begin with on the page, different for each picture.
    """
    if name.endswith(".png") and data.startswith(b"\x89PNG"):
        return "png", f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"
    if not name.endswith(".svg") or len(data) > _LARGEST or b"<!ENTITY" in data:
        return None
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError:
        return None
    kept = _drawing(root, prefix)
    if kept is None or kept.tag != "svg":
        return None
    kept.set("role", "img")
    return "svg", ElementTree.tostring(kept, encoding="unicode")


def _drawing(element: ElementTree.Element, prefix: str) -> ElementTree.Element | None:
    space, _, tag = element.tag[1:].rpartition("}") if element.tag.startswith("{") else ("", "", element.tag)
    if space not in ("", _SVG) or tag not in _DRAWING:
        return None
    kept = ElementTree.Element(tag, _attributes(element, prefix))
    kept.text, kept.tail = (element.text, None) if tag in ("text", "tspan") else (None, None)
    for child in element:
        if (drawn := _drawing(child, prefix)) is not None:
            drawn.tail = child.tail if tag in ("text", "tspan") else None
            kept.append(drawn)
    return kept


def _attributes(element: ElementTree.Element, prefix: str) -> dict[str, str]:
    kept: dict[str, str] = {}
    for name, value in element.attrib.items():
        if name in ("href", f"{{{_XLINK}}}href"):
            if _LINK.fullmatch(value):
                kept["href"] = f"#{prefix}{value[1:]}"
            elif _RASTER.fullmatch(value):
                kept["href"] = value
        elif name == "id":
            kept["id"] = prefix + value
        elif name in _PLAIN:
            kept[name] = value
        elif name == "clip-path" and (found := re.fullmatch(r"url\(#([\w.:-]+)\)", value)):
            kept["clip-path"] = f"url(#{prefix}{found[1]})"
        elif name == "style" or name in _SHEET:
            kept["style"] = ";".join(
                filter(None, (kept.get("style"), _sheet(value if name == "style" else f"{name}:{value}")))
            )
    return kept


def _sheet(style: str) -> str:
    """The declarations of a style that draw, with black and white as what the page has for them."""
    found = []
    for declaration in style.split(";"):
        name, _, value = (part.strip() for part in declaration.partition(":"))
        if name not in _SHEET or not _VALUE.fullmatch(value) or "url" in value.lower():
            continue
        if name in ("fill", "stroke"):
            value = {"#000000": "currentColor", "black": "currentColor", "#ffffff": "none"}.get(value, value)
        found.append(f"{name}:{value}")
    return ";".join(found)
