"""`python -m flashlight bench`: the programs side by side in one process, each cell checked before it is timed."""
