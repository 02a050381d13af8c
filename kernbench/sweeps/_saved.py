"""Results from files, with their manifests."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from kernbench._units import MIB
from kernbench.analysis._records import FILE, REMEDY
from kernbench.analysis.result import Result
from kernbench.config._files import damaged, read_arrays
from kernbench.errors import ConfigError

_MOST = 256 * MIB  # of content that arrives from a browser, in parts of 4 MiB
MOST_PARTS = _MOST // (4 * MIB) + 1


@dataclass(frozen=True, eq=False, repr=False)
class SavedResult(Result):
    """A result from a file, with its manifest; it is named after its file."""

    def __repr__(self) -> str:
        said = str(self.manifest)
        return f"{super().__repr__()}\n\nsaved: {said}" if said else super().__repr__()


def read(path: str | Path) -> SavedResult:
    """Reopen a result that `result.save`, `kernbench run --out` or the explorer wrote; it is named after its file.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    SavedResult
        With `manifest`: what ran, with which parameters and versions, as far as the file says.

    Raises
    ------
    ConfigError
        If the file cannot be read, is damaged, or is no result of kernbench.

    Examples
    --------
    >>> import kernbench as kb
    >>> result = kb.read("run1.npz")  # doctest: +SKIP
    >>> print(result.manifest)  # doctest: +SKIP
    study gemm m=64 k=64 n=64 on preset:small; data=True, log=tile; kernbench 0.2.0, numpy 2.4.6, python 3.11.7
    """
    return SavedResult.load(path)


def _refuse_files(path: Path) -> None:
    """Raise a ConfigError if the machine names a file of this host, because loading it would read that file."""
    with damaged(path, FILE, REMEDY):
        meta = json.loads(read_arrays(path, FILE, REMEDY)["meta"].tobytes())
        table = meta["spec"].get("cube", {}).get("pe", {}).get("pe_gemm", {}).get("table")
        if isinstance(table, str):
            raise TypeError("its machine names a file; a saved machine contains the rows of its table")


def read_content(name: str, content: bytes) -> SavedResult:
    """Read the result in the content of a file called `name`; raises as `read` does."""
    if len(content) > _MOST:
        raise ConfigError(f"{name}: is larger than {_MOST // MIB} MiB; open it in a cell, with kb.read")
    with TemporaryDirectory() as folder:
        path = Path(folder) / "result"
        path.write_bytes(content)
        try:
            _refuse_files(path)
            found = read(path)
        except ConfigError as error:
            raise ConfigError([fault.replace(str(path), name) for fault in error.faults]) from error
    return replace(found, name=Path(name).stem)
