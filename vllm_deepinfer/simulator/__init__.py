"""A simulated engine around the real vote and planner: for machines that nobody here has."""
