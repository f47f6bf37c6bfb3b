"""Scheduling: what this package adds to vLLM's schedulers."""
