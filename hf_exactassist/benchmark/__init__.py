"""How fast a pair decodes here, and why: what `exactassist bench` measures and tells."""
