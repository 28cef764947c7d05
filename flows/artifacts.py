"""What a flow shows in Prefect: a Markdown artifact with the result and the way to the MLflow run."""

from __future__ import annotations

from prefect.artifacts import create_markdown_artifact

from trtops.ops.result import OpResult


def show_result(result: OpResult) -> None:
    """Put a result beside the flow run, under a key that keeps the history of its experiment together."""
    show_text(result.title, result.page(), result.experiment)


def show_text(title: str, text: str, experiment: str) -> None:
    """Put a Markdown page beside the flow run, under such a key."""
    key = "".join(c if c.isascii() and c.isalnum() else "-" for c in f"{title} {experiment}".lower())
    create_markdown_artifact(text, key="-".join(filter(None, key.split("-"))) or "result")
