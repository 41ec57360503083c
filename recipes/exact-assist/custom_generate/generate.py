"""Exact assisted generation as a `custom_generate` recipe."""

import hf_exactassist


def generate(model, **kwargs):
    """`model.generate(...)`, decoded by `hf_exactassist` where an assistant or prompt lookup is given."""
    # Transformers hands over all of its own arguments, as `None` where the caller left them out
    given = {name: value for name, value in kwargs.items() if value is not None}
    return hf_exactassist.generate(model, **given)
