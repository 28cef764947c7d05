"""Reports as files: their content, hostile names and pictures in them, and their use in a real browser."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trtops import ops
from trtops.comparator.report import Tolerances, compare_outputs
from trtops.ops.evaluation.check import Evaluation, log_evaluation
from trtops.ops.result import OpResult, OpRun
from trtops.reports.description import code, description, without_links
from trtops.reports.document import Chart, Document, Point, Section, Table
from trtops.reports.page import picture
from trtops.reports.present import present, report_page
from trtops.tracking.base import tracked
from trtops.tracking.memory import MemoryTracker
from trtops.tracking.schema import Artifact, Metric, Tag
from trtops.verdict import VERDICTS, Verdict

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
        svg = (
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><script>alert(1)</script>'
            '<image href="http://evil.example/x.png"/><rect width="9" height="9"/></svg>'
        )
        run.log_text(svg, f"{Artifact.ACCURACY_PLOTS}two~2f~y.errors.svg")
        log_evaluation(run, evaluation)
        result = Built(title=f"convert {HOSTILE}.onnx", reasons=report.reasons, verdict=report.verdict)
        return OpRun(run, tracker, "odd").finish(result).run_id


@dataclass(frozen=True, kw_only=True)
class Built(OpResult):
    """A minimal result of an op."""

    verdict: Verdict
    reasons: tuple[str, ...]

    @property
    def next_step(self) -> str:  # type: ignore[override]
        return "trtops debug accuracy 'odd one.onnx'"

    def body(self) -> list[str]:
        return [f"| name |\n|---|\n| `{HOSTILE}` |", f"{HOSTILE}"]


@pytest.fixture(scope="module")
def run_id(tracker: MemoryTracker) -> str:
    return make_run(tracker)


def test_description_order(tracker: MemoryTracker, run_id: str) -> None:
    info = tracker.info(run_id)
    note = info.tags[Tag.NOTE]
    assert note.startswith("**bad** · convert ")
    places = [
        note.index(word)
        for word in ("**bad**", "exceed atol", "**Outputs**", "**Size and speed**", "**Next**", "**Links**")
    ]
    assert places == sorted(places)
    assert "3.0 MiB" in note and "accuracy 'odd one.onnx'  # what" in note and len(note) <= 8000
    assert info.metrics["error", "max_abs"] == pytest.approx(0.05, rel=1e-3)


def test_failed_run_has_a_report(tracker: MemoryTracker, tmp_path: Path) -> None:
    with pytest.raises(ValueError), tracked(tracker, "odd", "odd int8", kind="build") as run:
        raise ValueError("the calibrator ran dry")
    assert tracker.info(run.id).tags[Tag.NOTE].startswith("**error**")
    written = ops.report(run.id, tracker=tracker, output=tmp_path / "r.html")
    page = Path(written.path).read_text("utf-8")
    assert "the calibrator ran dry" in page and 'class="verdict error"' in page


def test_unproven_has_a_colour_of_its_own(tracker: MemoryTracker) -> None:
    with tracked(tracker, "odd", "odd fp32", kind="build") as run:
        table = Table(columns=("build", "verdict"), rows=(("first", "unproven"),))
        points = tuple(Point(label=verdict, x=float(i), y=1.0, tone=verdict) for i, verdict in enumerate(VERDICTS))
        chart = Chart(title="builds", form="points", x="number", points=points)
        document = Document(title="t", verdict="unproven", sections=(Section(table=table, chart=chart),))
        present(run, tracker, document)
        run.finish("unproven")

    page = report_page(tracker, run.id)

    assert '<p class="verdict unproven">unproven</p>' in page and '<td class="unproven">unproven</td>' in page
    assert '<span class="key unproven">unproven</span>' in page and '<circle class="unproven"' in page
    colours = re.findall(r"--(good|bad|error|unproven|plain): (#\w+)", page)
    assert len({colour for name, colour in colours}) == len(colours) == 10
    assert "runs promote" not in page and "runs promote" not in tracker.info(run.id).tags[Tag.NOTE]


def test_pictures_become_image_data() -> None:
    assert picture(b"<svg onload='alert(1)'/>", "x.svg").startswith("data:image/svg+xml;base64,")
    assert picture(b"\x89PNG...", "x.png").startswith("data:image/png;base64,")
    assert picture(b"GIF89a", "x.png") == picture(b"<html>", "x.html") == picture(None, "x.svg") == ""


@pytest.mark.parametrize("text", ["a", "a`b", "``", " x ", "`"])
def test_code_in_markdown_is_unchanged(text: str) -> None:
    from markdown_it import MarkdownIt

    shown = MarkdownIt("commonmark").renderInline(code(text))
    assert shown == f"<code>{text.strip() or ' '}</code>"


def test_description_fits_into_a_tag(tracker: MemoryTracker, run_id: str) -> None:
    document = Document(title="t", verdict="bad", reasons=tuple(f"reason {i}" for i in range(2000)))
    note = description(document, tracker.info(run_id))
    assert len(note) <= 8000 and note.endswith("(artifact report/report.html).")


@pytest.fixture(scope="module")
def file(tracker: MemoryTracker, run_id: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(ops.report(run_id, tracker=tracker, output=tmp_path_factory.mktemp("report") / "r.html").path)


def opened(browser: Any, file: Path, **options: Any) -> tuple[Any, list[str]]:
    """A page in a browser, and what it complained of or asked the network for."""
    page, messages = browser.new_page(**options), []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("dialog", lambda dialog: (messages.append(dialog.message), dialog.dismiss()))
    page.on(
        "request",
        lambda request: messages.append(request.url) if not request.url.startswith(("file:", "data:")) else None,
    )
    page.goto(file.as_uri())
    return page, messages


def test_browser_sorts_searches_and_fetches_nothing(browser: Any, file: Path) -> None:
    page, messages = opened(browser, file, viewport={"width": 380, "height": 800})
    assert messages == [] and page.evaluate("document.documentElement.scrollWidth") <= 380
    text = page.inner_text("main")
    assert all(name in text for name in NAMES)
    assert page.evaluate("[...document.images].map((image) => image.naturalWidth > 0)") == [True]
    assert page.locator(".bar").count() == len(NAMES)
    outputs = page.locator("section", has=page.locator("h2", has_text="Outputs")).locator("table")
    outputs.get_by_role("button", name="max abs").click()
    outputs.get_by_role("button", name="max abs").click()
    assert outputs.locator("tbody tr").first.locator("td").first.inner_text() == HOSTILE
    page.get_by_text("Layers (1000)").click()
    layers = page.locator("details", has_text="Layers (1000)")
    layers.locator("input").fill("layer 999")
    assert layers.locator("tbody tr:visible").count() == 1
    page.close()


def test_comparison_pins_its_baseline_when_sorted(
    browser: Any, tracker: MemoryTracker, run_id: str, tmp_path: Path
) -> None:
    other = make_run(tracker, layers=[*LAYERS[:3], {**LAYERS[3], "tactic": "0xffff"}], verdict_of=1.0)
    with pytest.raises(ValueError), tracked(tracker, "odd", "odd int8", kind="build") as failed:
        raise ValueError("the calibrator ran dry")
    written = ops.compare_page([run_id, other, failed.id], output=tmp_path / "c.html", tracker=tracker)
    page, messages = opened(browser, Path(written.path), viewport={"width": 390, "height": 800})
    assert messages == [] and page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.inner_text(".verdict") == "error" and page.inner_text(".headline").startswith("1 of 3 are good")
    assert "the calibrator ran dry" in page.inner_text("main ul")
    runs, _, layers = page.locator("table").all()
    assert layers.locator("tbody tr").count() == 997  # one has another tactic, 996 are missing
    for _ in range(2):
        runs.get_by_role("button", name="verdict").click()
        assert run_id[:8] in runs.locator("tbody tr").first.inner_text()
    page.close()


def test_dark_mode_and_print(browser: Any, file: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    page, messages = opened(browser, file, color_scheme="dark")
    assert page.evaluate(colour) == "rgb(20, 24, 29)"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(colour) == "rgb(255, 255, 255)" and messages == []
    page.close()


def test_names_make_no_links_in_pages():
    page = "# [a](javascript:x): good\n![b](http://m/1) [c](http://m/12)\nMLflow run [r](http://m/1) in `e`."
    expected = "# [a]\\(javascript:x): good\n![b](http://m/1) [c]\\(http://m/12)\nMLflow run [r](http://m/1) in `e`."
    assert without_links(page, "http://m/1") == expected
    assert "](" not in without_links(page)
