"""Grammar libraries in tests."""

import warnings

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def no_compilation():
    """Two of the libraries compile the kernel that masks scores, which takes longer than all tests."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture(autouse=True)
def no_complaints():
    """Outlines warns of every row that ends before another one, with an assistant and without."""
    warnings.filterwarnings("ignore", "Error in LLMatcher")
