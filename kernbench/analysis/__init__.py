"""What a run recorded, and what can be read from it: nothing here knows the machine, only its numbers."""
