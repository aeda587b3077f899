"""The unified reduction IR: what a program is. Imports no torch."""
