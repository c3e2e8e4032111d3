"""A connector whose import raises."""

raise ImportError("libsomething.so.1: cannot open shared object file")
