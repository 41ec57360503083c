"""The speed table of the project, in parts; `tools/speed_table.py` is its command."""
