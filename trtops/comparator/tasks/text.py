"""Metrics of text: error rates of characters and words by jiwer, and the share of tokens before a difference."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import numpy as np

from trtops import errors
from trtops.comparator.arrays import Array
from trtops.comparator.tasks.interval import Sampled, from_sums, mean_of, ratio
from trtops.comparator.tasks.outputs import TaskOutputs, check_count
from trtops.extras import require


def _sequences(outputs: TaskOutputs) -> list[Any]:
    """Return the text of each sample, or its token ids; of scores the best, and negative ids are padding."""

    def fits(array: Array) -> bool:
        is_text = array.dtype.kind in "OSU"
        return (
            is_text or (array.dtype.kind in "iu" and array.ndim == 2) or (array.dtype.kind == "f" and array.ndim == 3)
        )

    names = [name for name, array in outputs.iterations[0].items() if fits(np.asarray(array))]
    if not names:
        outputs.first(fits, "text, token ids (samples, length) or scores of tokens (samples, length, tokens)")
    sequences = list[Any]()
    for row in outputs.rows(names[0]):
        row = np.asarray(row)
        row = row.argmax(axis=-1) if row.dtype.kind == "f" else row
        if row.dtype.kind in "iu":
            sequences.append(row[row >= 0].tolist())
        else:
            words = [text.decode() if isinstance(text, bytes) else str(text) for text in np.ravel(row)]
            sequences.append(" ".join(words))
    return sequences


def error_rate(outputs: TaskOutputs, labels: Any, *, unit: Literal["words", "characters"]) -> Sampled:
    """Return the edits per word or character of the labels; a token id counts as a word."""
    require("jiwer")
    import jiwer

    texts, references = _sequences(outputs), list(labels)
    check_count(len(texts), len(references))
    process = jiwer.process_words if unit == "words" else jiwer.process_characters
    parts = np.zeros((len(texts), 2))
    for number, (text, reference) in enumerate(zip(texts, references)):
        if isinstance(text, str) != isinstance(reference, str):
            raise errors.ComparisonError(
                f"Label {number} is {reference!r:.40}, and the output is {text!r:.40}; expected both as text, or "
                "both as token ids. Decode the ids in a metric of your own (script.py:function)."
            )
        if not isinstance(text, str):
            if unit == "characters":
                raise errors.ComparisonError("The outputs are token ids, which have no characters. Use the metric wer.")
            text, reference = (" ".join(map(str, tokens)) for tokens in (text, reference))
        counts = process(reference, text)
        edits = counts.substitutions + counts.deletions + counts.insertions
        parts[number] = edits, counts.substitutions + counts.deletions + counts.hits
    return from_sums(parts, ratio)


def token_prefix(outputs: TaskOutputs, golden: TaskOutputs) -> Sampled:
    """Return the mean share of the model's tokens, or characters, before the first that differs."""
    shares = list[float]()
    for ours, theirs in zip(_sequences(outputs), _sequences(golden)):
        length = max(len(ours), len(theirs))
        pairs = enumerate(zip(ours, theirs))
        equal = next((place for place, (x, y) in pairs if x != y), min(len(ours), len(theirs)))
        shares.append(equal / length if length else 1.0)
    return mean_of(np.array(shares))


wer, cer = partial(error_rate, unit="words"), partial(error_rate, unit="characters")
