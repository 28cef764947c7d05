"""Types of flow parameters with the range that they must be in, which Prefect's form shows and its API holds them to."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

Count: TypeAlias = Annotated[int, Field(ge=1)]
"""1 or more."""

Several: TypeAlias = Annotated[int, Field(ge=2)]
"""2 or more."""

Index: TypeAlias = Annotated[int, Field(ge=0)]
"""A position, from 0 on."""

Positive: TypeAlias = Annotated[float, Field(gt=0)]
"""More than 0."""

Seconds: TypeAlias = Annotated[float, Field(ge=0)]
"""0 or more."""

Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
"""A share, from 0 to 1."""
