"""Where the parts of a tensor live."""
