"""Source to running kernel."""
