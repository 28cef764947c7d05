"""Reports as files: what they say, that nothing in them is believed, and how they look in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtops import ops
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.ops.evaluation.check import Evaluation, log_evaluation
from trtops.ops.result import OpResult, finish_with
from trtops.reports.description import code, description
from trtops.reports.document import Document
from trtops.reports.pictures import picture
from trtops.tracking.base import tracked
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Artifact, Metric, Tag

HOSTILE = "</script><img src=x onerror=alert(1)>|`[x](javascript:alert(1))![y](http://evil.example/y.png)"
NAMES = ("two/y", "a b", "ä:0", "出力/" + "長い名前" * 40, HOSTILE)
LAYERS = [{"name": f"layer {i}", "op": "Conv", "precision": "FP16", "tactic": f"0x{i:04x}"} for i in range(1000)]


def make_run(tracker: MemoryTracker, *, layers: list[dict[str, str]] = LAYERS, verdict_of: float = 1e-6) -> str:
    """A build as an op logs it, of an engine that is wrong in every output."""
    import numpy as np

    golden = {name: np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6) for name in NAMES}
    actual = {name: array + np.float32(0.01 * (i + 1)) for i, (name, array) in enumerate(golden.items())}
    report = compare_outputs(actual, golden, Tolerances(atol=verdict_of, rtol=0))
    evaluation = Evaluation(report=report)
    with tracked(tracker, "odd", "odd fp16", kind="build", tags={Tag.MODEL_PATH: "/models/odd one.onnx"}) as run:
        run.log_params({"precision": "fp16"})
        run.log_metrics({Metric.ENGINE_BYTES: 3.0 * 2**20, Metric.BUILD_SECONDS: 2.5})
        run.log_json(layers, Artifact.LAYERS)  # type: ignore[arg-type]
        svg = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><text x="1" y="8">übel</text></svg>'
        run.log_text(svg, f"{Artifact.ACCURACY_PLOTS}two~2f~y.errors.svg")
        log_evaluation(run, evaluation)
        result = Built(title=f"convert {HOSTILE}.onnx", reasons=report.reasons, verdict=report.verdict)
        finish_with(run, result, tracker)
        return run.id


class Built(OpResult):
    """The least that an op's result is."""

    def __init__(self, *, title: str, verdict: str, reasons: tuple[str, ...]) -> None:
        self.__dict__.update(title=title, verdict=verdict, reasons=reasons, run_id="", url="", experiment="")

    def body(self) -> list[str]:
        return [f"| name |\n|---|\n| `{HOSTILE}` |", f"{HOSTILE}"]


@pytest.fixture(scope="module")
def tracker() -> MemoryTracker:
    return MemoryTracker()


@pytest.fixture(scope="module")
def run_id(tracker: MemoryTracker) -> str:
    return make_run(tracker)


def test_a_run_s_description_begins_with_the_verdict_and_ends_with_digests(tracker: MemoryTracker, run_id: str) -> None:
    info = tracker.info(run_id)
    note = info.tags[Tag.NOTE]
    assert note.startswith("**bad** · convert ")
    places = [
        note.index(word)
        for word in ("**bad**", "exceed atol", "**Outputs**", "**Size and speed**", "**Next**", "**Links**")
    ]
    assert places == sorted(places)
    assert "3.0 MiB" in note and "'/models/odd one.onnx' --precision fp16" in note and len(note) <= 8000
    assert info.tags[Tag.WORST_OUTPUT] == HOSTILE and info.metrics["error", "max_abs"] == pytest.approx(0.05, rel=1e-3)
    assert not any(len(name) == 3 and name[0] == "error_log10" for name in info.metrics)


def test_a_failed_run_says_so_in_its_report(tracker: MemoryTracker, tmp_path: Path) -> None:
    with pytest.raises(ValueError), tracked(tracker, "odd", "odd int8", kind="build") as run:
        raise ValueError("the calibrator ran dry")
    assert tracker.info(run.id).tags[Tag.NOTE].startswith("**error**")
    written = ops.report(run.id, tracker=tracker, output=tmp_path / "r.html")
    page = Path(written.path).read_text("utf-8")
    assert "the calibrator ran dry" in page and 'class="verdict error"' in page


def test_two_engines_side_by_side(tracker: MemoryTracker, run_id: str, tmp_path: Path) -> None:
    changed = [{**LAYERS[0], "tactic": "another"}, *LAYERS[1:]]
    other = make_run(tracker, layers=changed)
    page = Path(ops.report(run_id, other, tracker=tracker, output=tmp_path / "d.html").path).read_text("utf-8")
    assert "1 layers" in page and "another" in page and "layer 7<" not in page


def test_a_picture_from_a_store_can_only_draw() -> None:
    evil = b"""<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" onload="alert(1)" viewBox="0 0 9 9">
    <script>alert(1)</script><style>@import url(http://evil.example)</style><foreignObject><b>x</b></foreignObject>
    <image href="http://evil.example/x.png"/><a href="javascript:alert(1)"><text>in a link</text></a>
    <text style="fill:#000000;background:url(http://evil.example)" onclick="alert(1)">kept</text>
    <use xlink:href="#m"/><path id="m" d="M0 0"/></svg>"""
    found = picture(evil, "x.svg", "p0-")
    assert found is not None
    for gone in ("script", "evil", "onload", "onclick", "foreignObject", "javascript", "style>"):
        assert gone not in found[1]
    assert (
        ">kept<" in found[1] and 'href="#p0-m"' in found[1] and 'id="p0-m"' in found[1] and "currentColor" in found[1]
    )
    assert picture(b"<!DOCTYPE x [<!ENTITY a 'b'>]><svg/>", "x.svg", "") is None
    assert picture(b"GIF89a", "x.png", "") is None


@pytest.mark.parametrize("text", ["a", "a`b", "``", " x ", "`"])
def test_code_in_markdown_is_what_was_given(text: str) -> None:
    from markdown_it import MarkdownIt

    shown = MarkdownIt("commonmark").renderInline(code(text))
    assert shown == f"<code>{text.strip() or ' '}</code>"


def test_a_description_fits_into_a_tag(tracker: MemoryTracker, run_id: str) -> None:
    document = Document(title="t", verdict="bad", why=tuple(f"reason {i}" for i in range(2000)))
    note = description(document, tracker.info(run_id))
    assert len(note) <= 8000 and note.endswith("(artifact report/report.html).")


@pytest.fixture(scope="module")
def file(tracker: MemoryTracker, run_id: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(ops.report(run_id, tracker=tracker, output=tmp_path_factory.mktemp("report") / "r.html").path)


def opened(browser: Any, file: Path, **options: Any) -> tuple[Any, list[str]]:
    """A page in a browser, and what it complained of or asked the network for."""
    page, told = browser.new_page(**options), []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("dialog", lambda dialog: (told.append(dialog.message), dialog.dismiss()))
    page.on(
        "request", lambda request: told.append(request.url) if not request.url.startswith(("file:", "data:")) else None
    )
    page.goto(file.as_uri())
    return page, told


def test_in_a_browser_it_sorts_finds_and_fetches_nothing(browser: Any, file: Path) -> None:
    page, told = opened(browser, file, viewport={"width": 380, "height": 800})
    assert told == [] and page.evaluate("document.documentElement.scrollWidth") <= 380
    text = page.inner_text("main")
    assert (
        all(name in text for name in NAMES)
        and "übel" in page.inner_text(".picture")
        and page.locator("main img").count() == 0
    )
    outputs = page.locator("section", has=page.locator("h2", has_text="Outputs")).locator("table")
    outputs.get_by_role("button", name="max abs").click()
    outputs.get_by_role("button", name="max abs").click()
    assert outputs.locator("tbody tr").first.locator("td").first.inner_text() == HOSTILE
    page.get_by_text("Layers (1000)").click()
    layers = page.locator("details", has_text="Layers (1000)")
    layers.locator("input").fill("layer 999")
    assert layers.locator("tbody tr:visible").count() == 1
    page.close()


def test_it_is_dark_where_the_reader_is_and_light_on_paper(browser: Any, file: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    page, told = opened(browser, file, color_scheme="dark")
    assert page.evaluate(colour) == "rgb(20, 24, 29)"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(colour) == "rgb(255, 255, 255)" and told == []
    page.close()


def test_the_stored_document_is_plain_json(tracker: MemoryTracker, run_id: str) -> None:
    stored = tracker.load(run_id)
    document = Document.from_dict(json.loads(stored.read_bytes(Artifact.REPORT_DATA)))
    assert document.verdict == "bad" and Artifact.REPORT in stored.manifest
