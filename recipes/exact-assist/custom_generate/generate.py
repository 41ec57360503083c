"""Exact assisted generation as a `custom_generate` recipe."""

import hf_exactassist


def generate(model, **kwargs):
    """`model.generate(...)`, decoded by `hf_exactassist` where an assistant or prompt lookup is given."""
    # `None`s come along, as the caller's own ones mean something: `eos_token_id=None` beats the model's config
    return hf_exactassist.generate(model, **kwargs)
