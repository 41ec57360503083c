"""What assistance brings and leaves unchanged on a dataset: prompts and statistics."""
