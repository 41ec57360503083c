"""The only contact with private Transformers surface: names that changed, admission, prefill and scoring."""
