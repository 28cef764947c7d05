"""What a flow shows in Prefect: a Markdown artifact with the result and the way to the MLflow run."""

from __future__ import annotations

from prefect.artifacts import create_markdown_artifact

from trtops.ops.result import OpResult


def show_result(result: OpResult) -> None:
    """Put a result beside the flow run, under a key that keeps the history of its experiment together."""
    title = f"{result.title} {result.experiment}".lower()
    words = "".join(c if c.isascii() and c.isalnum() else " " for c in title).split()
    create_markdown_artifact(result.page(), key="-".join(words) or "result")
