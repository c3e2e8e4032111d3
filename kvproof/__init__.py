"""kvproof: formal verification and fault injection for the remote KV caches of LLM serving."""

__version__ = "0.1.0"
