"""Event spaces: which tokens of two models mean the same."""
