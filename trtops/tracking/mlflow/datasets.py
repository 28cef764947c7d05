"""The data of a run as MLflow's own data sets, which its tables show and filter by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from trtops.tracking.materials import Materials

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

_MAX_DIGEST = 36


def dataset_inputs(materials: Materials) -> list[DatasetInput]:
    """The check data and the golden outputs of a build, for ``MlflowClient.log_inputs``."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    contexts = {"data": "evaluated on", "golden": "golden outputs"}
    found = []
    for material in materials.given:
        if (context := contexts.get(material.name)) is None:
            continue
        place = materials.check.get(material.name)
        seed = materials.check.get("seed", 0)
        source = {"uri": str(place)} if place else {"seed": seed}
        dataset = Dataset(
            name=(Path(str(place)).name if place else f"random, seed {seed}")[:500],
            digest=material.sha256[:_MAX_DIGEST],
            source_type="trtops",
            source=json.dumps({**source, "artifact": material.path, "sha256": material.sha256}),
        )
        found.append(DatasetInput(dataset, [InputTag("mlflow.data.context", context)]))
    return found
