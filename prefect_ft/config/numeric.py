"""The watch over losses and gradient norms as users describe it: what is unusual, and what happens then."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from prefect_ft.config.fields import Seconds, Section, WholeNumber, problem


class Numeric(Section):
    """What happens when the loss or the gradient norm that a rank reports is NaN, is infinite or jumps up."""

    watch: Literal["off", "report", "act"] = Field(
        default="off",
        description="report: record it; act: end the attempt as if the script had failed of it, so that the rules "
        "numeric and skip-steps decide; off: nothing is looked at",
    )
    window: WholeNumber = Field(
        default=128,
        ge=8,
        le=10000,
        description="Values of a rank that say what is usual: the last ones",
    )
    min_values: WholeNumber = Field(
        default=32,
        ge=2,
        le=10000,
        description="Values needed before a jump counts; at most window",
    )
    deviations: Seconds = Field(
        default=12.0,
        gt=1,
        le=1e6,
        description="Standard deviations above the median of the window, estimated by the median absolute deviation, "
        "beyond which a value is a jump",
    )
    max_acts: WholeNumber = Field(
        default=3,
        ge=1,
        le=128,
        description="Attempts of a phase that act ends; what comes after is only recorded",
    )

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.min_values > self.window:
            raise problem(f"must be at most window, {self.window}, got {self.min_values}", "min_values")
        return self
