"""When a remote cache pays: plans from a cost model and a trace, a simulator of its queue, and their plots."""
