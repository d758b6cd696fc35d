"""Which errors end a process's use of its GPU, in the words of those who tell them."""

from __future__ import annotations

import pytest
from cuda.bindings import runtime

from headrace.core.gpu_faults import loses_gpu

# By CUDA's documentation of cudaError, as numbers: the driver's are the same.
LOST = {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 999}


def test_the_runtimes_names() -> None:
    assert {error.value for error in runtime.cudaError_t if loses_gpu(error.name)} == LOST


@pytest.mark.parametrize(
    "text",
    [
        "CUDA runtime API error cudaErrorIllegalAddress (700):\nan illegal memory access was encountered",
        "CUDA driver API error CUDA_ERROR_LAUNCH_FAILED (719):\nunspecified launch failure",
        "CUDA error: an illegal memory access was encountered",
        "cudaErrorECCUncorrectable: uncorrectable ECC error encountered",
        "CUDA error: misaligned address",
    ],
)
def test_libraries_words(text: str) -> None:
    assert loses_gpu(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "CUDA runtime API error cudaErrorMemoryAllocation (2):\nout of memory",
        "Failed to decode sample",
        "unknown image format",
        "nvJPEG error (5): NVJPEG_STATUS_ALLOCATOR_FAILURE",
        'Assert on "size > 0" failed',
        "CUDA_ERROR_INVALID_VALUE",
    ],
)
def test_what_passes_or_is_an_images_fault(text: str) -> None:
    assert not loses_gpu(text)
