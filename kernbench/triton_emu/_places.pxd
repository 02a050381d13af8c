# Compiled without types: its classes stay Python's.
