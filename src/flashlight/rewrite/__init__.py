"""Program to program. Imports no torch."""
