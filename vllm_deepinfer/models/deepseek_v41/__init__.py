"""DeepSeek-V4.1-Flash: configuration, checkpoint format and model."""
