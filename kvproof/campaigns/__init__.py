"""Campaigns: cases that nobody wrote down, tried for hours; what they find is kept, grouped, shrunk and replayed.

`case` says what a case is, `generate` makes new ones, `play` plays one and `judge` looks for what may not happen;
`worker` does that many at once, and `campaign` drives workers, here or elsewhere, and journals what they report.
"""
