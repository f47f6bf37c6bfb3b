"""Thin worker classes, one per platform, over vLLM's."""
