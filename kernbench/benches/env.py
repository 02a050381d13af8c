"""Settings of a bench from the environment, checked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kernbench.errors import ConfigError

# All that the package's benches read from the environment.
SETTINGS = (
    "CCL_ALGORITHM", "CCL_N_ELEM", "GPT3_D_MODEL", "GPT3_QKV_TOKENS", "MATMUL_DTYPE", "MATMUL_K", "MATMUL_M",
    "MATMUL_N", "MATMUL_VARIANT",
)  # fmt: skip


def env_settings() -> dict[str, str]:
    """Return those of `SETTINGS` that are set."""
    return {name: os.environ[name] for name in SETTINGS if name in os.environ}


def env_text(name: str, default: str) -> str:
    """Return the environment variable `name`, which is one of `SETTINGS`."""
    assert name in SETTINGS, name
    return os.environ.get(name, default)


def env_int(name: str, default: int) -> int:
    """Return the environment variable `name` as an integer of at least 1."""
    text = env_text(name, str(default))
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
    text = env_text(name, default)
    if text not in known:
        raise ConfigError(f"environment: {name} = {text!r} is unknown; known: {', '.join(known)}")
    return text
