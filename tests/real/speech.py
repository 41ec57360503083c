"""Speech of known words: the synthesiser espeak-ng, from the PyPI package espeakng-loader, called through ctypes."""

import ctypes
import functools

import numpy as np
import torch


RATE = 16_000  # what Whisper hears

SENTENCE = "The little boat left the harbour early in the morning, and nobody on the shore waved goodbye."
CLIPS = (
    "My sister keeps seven yellow chickens behind the kitchen.",
    SENTENCE,
    "Please turn left after the second bridge. The library is the tall building with the green door, "
    "and it closes at six in the evening.",
)
PASSAGE = """
The old clock in the town hall had been silent for thirty years when a young carpenter offered to repair it. He asked
for no money. He wanted only the key to the tower, a lamp, and some bread and cheese every evening. The mayor laughed,
but he gave him the key. On the first day the carpenter cleaned the stairs. On the second day he opened the windows,
and hundreds of pigeons flew out over the market. On the third day he took the great wheel apart, and he laid every
piece on a white cloth, in the order in which it had come off. People began to climb the tower to watch him work.
The baker brought warm rolls. The teacher brought her pupils, and they counted the teeth of all the wheels together.
After two weeks everything had been cleaned and oiled, but the clock still refused to move. Then a small girl pointed
at the pendulum and said that there was a nest on it. The carpenter waited until the birds had left the nest in summer.
He carried it down to a tree in the garden, and at noon on the following Sunday the bells were heard again. Nobody in
the town was late for dinner that evening, and the mayor was the first at the table. The carpenter went home along the
river with his lamp, and he whistled all the way.
"""

_SYNCHRONOUS, _UTF8 = 2, 1
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


@functools.cache
def _library() -> tuple[ctypes.CDLL, int]:
    """The synthesiser, set up, and its sample rate."""
    import espeakng_loader

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0)
    if rate <= 0 or library.espeak_SetVoiceByName(b"en-us"):
        raise RuntimeError("espeak-ng does not start")
    return library, rate


@functools.cache
def spoken(text: str) -> np.ndarray:
    """The text as float32 samples between -1 and 1, `RATE` of them a second."""
    library, rate = _library()
    heard: list[np.ndarray] = []

    @_CALLBACK
    def collect(samples, count, events):
        if samples and count > 0:
            heard.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0  # go on

    library.espeak_SetSynthCallback(collect)
    said = " ".join(text.split()).encode() + b"\0"
    if library.espeak_Synth(said, ctypes.c_size_t(len(said)), 0, 1, 0, _UTF8, None, None):
        raise RuntimeError("espeak-ng does not speak")
    wave = torch.from_numpy(np.concatenate(heard)).float()[None, None] / 2**15
    length = wave.shape[-1] * RATE // rate
    return torch.nn.functional.interpolate(wave, size=length, mode="linear", align_corners=False)[0, 0].numpy()
