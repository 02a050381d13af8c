"""Sizes of parallel groups: what is no int is refused by the name of its argument."""

import pytest

import kernbench as kb
from kernbench.errors import KernbenchError
from kernbench.tp import parallel_state as ps
from tests.tp.test_layers import machine


@pytest.mark.parametrize("axis", ["tensor_model", "pipeline_model", "context"])
@pytest.mark.parametrize("size", [2.0, "2", True])
def test_sizes_are_ints(axis, size):
    name = f"{axis}_parallel_size"

    def program(rank, torch):
        torch.distributed.init_process_group("ahbm")
        with pytest.raises(KernbenchError, match=f"{name} = {size!r}; expected an int >= 1"):
            ps.initialize_model_parallel(**{name: size}, torch=torch)
        assert not ps.model_parallel_is_initialized()

    with kb.session(machine(2), data=True) as torch:
        torch.multiprocessing.spawn(program, args=(torch,), nprocs=2)
