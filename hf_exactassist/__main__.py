"""`python -m hf_exactassist`: the command `exactassist`, for launchers that start modules."""

from .cli import app


app(prog_name="exactassist")
