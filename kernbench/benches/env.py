"""Settings of a bench from the environment, checked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kernbench.errors import ConfigError


def env_int(name: str, default: int) -> int:
    """Return the environment variable `name` as an integer of at least 1."""
    text = os.environ.get(name)
    if text is None:
        return default
    if not text.strip().isdecimal() or int(text) < 1:
        raise ConfigError(f"environment: {name} = {text!r} must be an integer >= 1")
    return int(text)


@contextmanager
def env_set(name: str, value: str | None) -> Iterator[None]:
    """Have the environment variable `name` for a while; with None, leave it as it is."""
    before = os.environ.get(name)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        if value is not None:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


def env_choice(name: str, default: str, known: Sequence[str]) -> str:
    """Return the environment variable `name`, one of `known`."""
    text = os.environ.get(name, default)
    if text not in known:
        raise ConfigError(f"environment: {name} = {text!r} is unknown; known: {', '.join(known)}")
    return text
