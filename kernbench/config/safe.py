"""Files that anyone may have written: read with a bound on size, and named in the error when they are damaged."""

from __future__ import annotations

import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench.errors import ConfigError, HostError, MissingFileError
from kernbench.units import MIB

if TYPE_CHECKING:
    import numpy as np

MOST_YAML = MIB
MOST_JSON = 256 * MIB
# Arrays of a log compress to a fifth, those of a long one to a hundredth.
MOST_ARRAYS, MOST_RATIO = 64 * MIB, 200

_DAMAGE = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError,
    RuntimeError, TypeError, ValueError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


def read_text(path: Path, most: int, remedy: str) -> str:
    """Return the text of a file of at most `most` bytes.

    Raises
    ------
    ConfigError
        If it cannot be read, is larger, or is not UTF-8; `remedy` says what to do. A MissingFileError if there is none.
    """
    data = read_bytes(path, most, remedy)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text at byte {error.start}; save it as UTF-8") from error


def read_bytes(path: Path, most: int, remedy: str) -> bytes:
    """Return the content of a file of at most `most` bytes; raises as `read_text` does."""
    why = None
    try:
        if path.exists() and not path.is_file():
            why = "it is not a file"
        else:
            with path.open("rb") as file:
                data = file.read(most + 1)
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    except OSError as error:
        why = error.strerror
    except ValueError as error:  # a path with a null character
        why = str(error)
    if why is not None:
        raise ConfigError(f"{path}: cannot be read ({why}); {remedy}")
    if len(data) > most:
        raise ConfigError(f"{path}: is larger than {most // MIB} MiB; {remedy}")
    return data


@contextmanager
def damaged(name: object, what: str, remedy: str) -> Iterator[None]:
    """Raise a ConfigError in place of what an unexpected content of the file `name` causes inside the with-block."""
    try:
        yield
    except ConfigError:
        raise
    except _DAMAGE as error:
        why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ConfigError(f"{name}: is damaged, or no {what} ({why}); {remedy}") from error


_REMEDY = "make room or name another folder, then run the same again"


@contextmanager
def replacing(path: Path, remedy: str = _REMEDY) -> Iterator[Path]:
    """Give a file to write, which then takes the place of `path`, or is gone if that fails or is interrupted.

    Raises
    ------
    HostError
        If it cannot be written, as on a full disk; what was in `path` stays.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    except OSError as error:
        raise HostError(f"{path}: cannot be written: {error.strerror or error}; {remedy}") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def write_text(path: Path, text: str, remedy: str = _REMEDY) -> Path:
    """Write a text file whole, as `replacing` does, and return its path."""
    with replacing(path, remedy) as part:
        part.write_text(text, encoding="utf-8", newline="\n")
    return path


def read_json(path: Path, what: str, remedy: str) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises
    ------
    ConfigError
        If it cannot be read, is larger than 256 MiB, or is no JSON object.
    """
    text = read_text(path, MOST_JSON, remedy)
    with damaged(path, what, remedy):
        content = json.loads(text)
        if not isinstance(content, dict):
            raise TypeError(f"expected an object, found {type(content).__name__}")
    return content


def read_arrays(path: Path, what: str, remedy: str) -> dict[str, np.ndarray]:
    """Return the arrays of an .npz file; objects in it are refused, and their sizes are checked before they are read.

    Raises
    ------
    ConfigError
        If it cannot be read, is damaged, or its arrays are much larger than the file.
    """
    try:
        size = path.stat().st_size
        with damaged(path, what, remedy), zipfile.ZipFile(path) as file:
            infos = file.infolist()
            total, most = sum(info.file_size for info in infos), max(MOST_ARRAYS, MOST_RATIO * size)
            if total > most:
                raise ConfigError(f"{path}: {size:,} bytes hold arrays of {total:,} bytes, as no {what} does; {remedy}")
            return {info.filename.removesuffix(".npy"): _array(file.read(info)) for info in infos}
    except OSError as error:
        kind = MissingFileError if isinstance(error, FileNotFoundError) else ConfigError
        raise kind(f"{path}: cannot be read ({error.strerror or error}); {remedy}") from error


def _array(data: bytes) -> np.ndarray:
    import numpy as np
    from numpy.lib import format as npy

    head = io.BytesIO(data)
    version = npy.read_magic(head)
    shape, is_fortran, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(head)
    if dtype.hasobject:
        raise ValueError("an array holds Python objects")
    if prod(shape) * dtype.itemsize != len(data) - head.tell():
        raise ValueError(f"an array of shape {shape} has {len(data) - head.tell()} bytes")
    flat = np.frombuffer(data, dtype, offset=head.tell())
    return flat.reshape(shape[::-1]).T if is_fortran else flat.reshape(shape)
