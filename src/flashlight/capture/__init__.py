"""From FX graphs to regions that become kernels, and back."""
