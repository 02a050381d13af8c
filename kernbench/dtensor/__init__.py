"""DTensor: a tensor spread over the ranks of a device mesh, each rank's part placed on its device's PEs."""
