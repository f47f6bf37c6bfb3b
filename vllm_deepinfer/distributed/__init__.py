"""What ranks tell each other: collectives on the CPU, and tokens on their way to experts."""
