"""Random attention-like programs in plain PyTorch, and what is done with them."""
