"""Tiled program to source."""
