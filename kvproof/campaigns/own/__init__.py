"""Campaigns on kvproof's own parts: its decoder, its models against the spec, its obligations and its explorer."""
