"""A decoder over a small law, without models: exact, or lossy in a known way."""

import numpy as np


EOS, TOKENS, HORIZON = 0, 8, 40


def law(seed=0, eos=0.05):
    """Target and draft laws of the next token by the last one: two arrays of shape (TOKENS, TOKENS)."""
    rng = np.random.default_rng(seed)
    rest = rng.dirichlet(np.ones(TOKENS - 1), size=TOKENS) * (1 - eos)
    p = np.concatenate([np.full((TOKENS, 1), eos), rest], axis=1)
    q = 0.8 * p + 0.2 * rng.dirichlet(np.ones(TOKENS), size=TOKENS)
    return p, q


def draw(probs, rng):
    """One token from each row of (N, V)."""
    edges = probs.cumsum(axis=1)
    return (rng.random((len(probs), 1)) * edges[:, -1:] >= edges).sum(axis=1)


def judged(p, q, rng, leniency=1.0):
    """Speculative sampling, row by row of (N, V): `leniency` times as many drafts are accepted as may be."""
    drafts, rows = draw(q, rng), np.arange(len(p))
    kept = rng.random(len(p)) * q[rows, drafts] < leniency * np.minimum(p, q)[rows, drafts]
    left = np.maximum(p - q, 0) + 1e-300  # where the laws are equal nothing is left, and nothing is rejected
    return np.where(kept, drafts, draw(left, rng))


def texts(step, prompts, rng):
    """Texts of `step(last tokens, rng)`, which start behind the tokens `prompts` and end with EOS or the horizon."""
    found, last, alive = [[] for _ in prompts], np.array(prompts), np.ones(len(prompts), bool)
    for _ in range(HORIZON):
        last = step(last, rng)
        for row in np.flatnonzero(alive):
            found[row].append(int(last[row]))
        alive &= last != EOS
    return found


def likelihood(text, prompt, p):
    """Mean log-likelihood per token."""
    return float(np.log(p[[prompt, *text[:-1]], text]).mean())
