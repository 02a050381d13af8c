"""What stands on the graph: transit parts, servers, and the control that drives them."""
