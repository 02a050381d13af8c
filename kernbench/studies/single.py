"""Studies of one point, for sweeps: from a machine and parameters to a row of numbers."""

from __future__ import annotations

from kernbench.studies import gemm as gemm_study
from kernbench.sweeps.keys import Row
from kernbench.topology.builder import Machine


def gemm(
    machine: Machine, *, m: int, k: int, n: int, staging: str = "ref_ref", dtype: str = "f16", mode: str = "auto"
) -> Row:
    """Return one product on one PE, checked against numpy.

    Parameters
    ----------
    machine : Machine
    m, k, n : int
        Sizes: C[m, n] = A[m, k] B[k, n].
    staging : str
        "ref_ref", "load_ref" or "load_load".
    dtype : str
        Of A, B and C.
    mode : str
        Of the engine.
    """
    result = gemm_study.run(machine, (m, k, n), staging, dtype=dtype, mode=mode)
    row = gemm_study.row(machine, result, (m, k, n), staging, dtype)
    kept = (
        "pe_window_ns",
        "composite_window_ns",
        "ideal_ns",
        "pe_useful",
        "composite_useful",
        "limiter",
        "certificate",
    )
    return {name: row[name] for name in kept}
