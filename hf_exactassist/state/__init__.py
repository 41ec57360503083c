"""What a call owns while it decodes: rows of tokens, row-addressed caches, processors, stopping rules."""
