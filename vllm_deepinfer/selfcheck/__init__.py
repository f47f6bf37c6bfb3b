"""Compare a checkpoint's outputs on this machine with recorded ones."""
