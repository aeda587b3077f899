"""Program to program: the passes, one to a file. Imports no torch."""
