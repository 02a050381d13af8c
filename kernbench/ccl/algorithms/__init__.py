"""Collective algorithms, one a file: each a list of moves that `moves.perform` carries out."""
