"""Methods of vLLM that no hook reaches, each replaced by a module of its own."""
