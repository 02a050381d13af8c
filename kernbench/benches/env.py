"""Settings of a bench from the environment, checked."""

from __future__ import annotations

import os
from collections.abc import Sequence

from kernbench.errors import ConfigError


def env_int(name: str, default: int) -> int:
    """Return the environment variable `name` as an integer of at least 1."""
    text = os.environ.get(name)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"environment: {name} = {text!r} must be an integer >= 1")
    return int(text)


def env_choice(name: str, default: str, known: Sequence[str]) -> str:
    """Return the environment variable `name`, one of `known`."""
    text = os.environ.get(name, default)
    if text not in known:
        raise ConfigError(f"environment: {name} = {text!r} is unknown; known: {', '.join(known)}")
    return text
