"""Pages for numbers that a device fetches."""

from __future__ import annotations

import pytest
import torch

from eyas.transfer import BlankPages


@pytest.mark.parametrize("is_made_ahead", [False, True])
def test_a_page_is_blank_and_nobody_elses(is_made_ahead: bool) -> None:
    pages = BlankPages(torch.device("cpu"))
    taken: list[torch.Tensor] = []
    for shape in ((3, 5), (3, 5), (2, 4), (3, 5)):
        if is_made_ahead:
            pages.make((3, 5))
        page = pages.take(shape)
        assert tuple(page.shape) == shape and page.dtype == torch.int32 and not page.any()
        page.fill_(7)
        assert all(bool((other == 7).all()) for other in taken), "nobody clears what was taken"
        taken.append(page)
    assert len({page.data_ptr() for page in taken}) == len(taken)
