"""Campaigns on worlds of ranks: prompts that share prefixes, evictions, and faults at one rank or inside of one."""
