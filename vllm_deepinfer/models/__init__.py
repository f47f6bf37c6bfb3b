"""Models served by vllm-deepinfer."""
