"""Pictures: one function per figure, from plain tables; matplotlib's object interface, so any thread may draw."""
