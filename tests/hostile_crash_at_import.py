"""A connector whose import ends the process."""

import ctypes

ctypes.string_at(8)
