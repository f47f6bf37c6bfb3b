"""Counters kept where work happens and shown where Prometheus asks: two different processes."""
