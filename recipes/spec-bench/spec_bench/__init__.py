"""Spec-Bench's questions, answered plainly and with an assistant."""
