"""Figures from plain tables, one function each; matplotlib's object interface, so any thread may draw."""
