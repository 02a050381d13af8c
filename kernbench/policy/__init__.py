"""Rules of the machine that cost no hardware: addresses, placement, routes."""
