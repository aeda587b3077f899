"""From FX graphs to programs: every tensor is a nest read at an index map."""
