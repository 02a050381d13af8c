"""Tensor parallelism in Megatron-LM's words: parallel groups, mappings between regions, parallel linear layers."""
