"""The platforms: where this package runs, and how vLLM is set up there."""
