"""The types of values in every infrastructure with images: their names, and sizes as users write them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field

from prefect_ft.config.fields import Text, problem, shown

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _size(value: object) -> object:
    if type(value) is int:
        return value
    match = re.fullmatch(r"([0-9]{1,15})([bkmgt]?)b?", value.lower()) if isinstance(value, str) else None
    if match is None:
        raise problem(f"must be bytes or a number with k, m or g, like 8g, got {shown(value)}")
    return int(match[1]) * _UNITS[match[2]]


def _image(value: str) -> str:
    if not re.fullmatch(r"[a-zA-Z0-9][^\s]*", value):
        raise problem(f"must be the name of an image, like my-training:latest, got {shown(value)}")
    return value


_MAX_BYTES = 1 << 50

_Bytes = Annotated[int, Field(ge=1, le=_MAX_BYTES)]
Size = Annotated[int, Field(ge=1, le=_MAX_BYTES), BeforeValidator(_size, json_schema_input_type=_Bytes | str)]
ImageName = Annotated[Text, AfterValidator(_image)]
