"""The clock, the links and everything that happens on them."""
