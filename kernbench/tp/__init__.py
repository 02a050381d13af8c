"""Tensor parallelism under Megatron-LM's names: parallel groups, mappings between regions, parallel linear layers."""

from __future__ import annotations

from kernbench.tp import parallel_state
from kernbench.tp._layers import ColumnParallelLinear, ModelParallelConfig, RowParallelLinear
from kernbench.tp._mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    gather_from_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    scatter_to_sequence_parallel_region,
    scatter_to_tensor_model_parallel_region,
)
from kernbench.tp.parallel_state import get_tensor_model_parallel_rank as get_tensor_model_parallel_rank
from kernbench.tp.parallel_state import get_tensor_model_parallel_world_size as get_tensor_model_parallel_world_size
from kernbench.tp.parallel_state import initialize_model_parallel as initialize_model_parallel

__all__ = [
    "ColumnParallelLinear",
    "ModelParallelConfig",
    "RowParallelLinear",
    "copy_to_tensor_model_parallel_region",
    "gather_from_sequence_parallel_region",
    "gather_from_tensor_model_parallel_region",
    "parallel_state",
    "reduce_from_tensor_model_parallel_region",
    "reduce_scatter_to_sequence_parallel_region",
    "scatter_to_sequence_parallel_region",
    "scatter_to_tensor_model_parallel_region",
]
