"""Campaigns on single clients: one or two instances of a connector, steps, and faults on their ways."""
