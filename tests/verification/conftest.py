import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """These tensors are tiny: threads cost more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
