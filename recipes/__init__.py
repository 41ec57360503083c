raise ModuleNotFoundError(
    "`recipes` is not a package: a recipe is a leaf, shaped like a Hub repository, and nothing imports it. Hand its "
    'folder to Transformers: `model.generate(..., custom_generate="recipes/exact-assist", trust_remote_code=True)`. '
    "What recipes are made of can be imported from `hf_exactassist`."
)
