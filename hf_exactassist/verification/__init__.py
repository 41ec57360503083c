"""Pure torch mathematics of exact speculative sampling. Knows nothing of Transformers."""
