"""Makes a small random model in the published checkpoint layout."""
