"""What all configuration has in common."""

from __future__ import annotations

from typing import get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


def _holds_truth(value: object) -> bool:
    if isinstance(value, list | tuple | dict):
        return any(map(_holds_truth, value.values() if isinstance(value, dict) else value))
    return isinstance(value, bool)


def _names_truth(annotation: object) -> bool:
    return annotation is bool or any(map(_names_truth, get_args(annotation)))


class Config(BaseModel):
    """Base of all configuration: frozen, strict about names, documented by its attribute docstrings."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_for_a_number(cls, value: object, field: ValidationInfo) -> object:
        """Refuse true and false, which Python takes for 1 and 0, where they are not asked for."""
        assert field.field_name is not None
        if _holds_truth(value) and not _names_truth(cls.model_fields[field.field_name].annotation):
            raise ValueError("must not be true or false")
        return value
