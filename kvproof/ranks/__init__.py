"""Worlds of ranks: real processes in lockstep, what can go wrong in one of them, and what then holds for all."""
