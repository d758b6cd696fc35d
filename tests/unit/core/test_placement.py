"""Which engine is chosen, on many machines."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.placement import GPU_ENGINES, GPU_NEEDS_BYTES, Gpu, Machine, choose, visible

GIB = 2**30
H100 = Gpu(0, "GPU-1", "NVIDIA H100", 80 * GIB, 79 * GIB, jpeg=True, capability=(9, 0))
T4 = replace(H100, name="Tesla T4", total_bytes=15 * GIB, free_bytes=14 * GIB, jpeg=False, capability=(7, 5))
ONE_GPU = Machine(cores=16, gpus=(H100,), driver="570.1", cuda=(12, 8))
NO_DRIVER = Machine(cores=2, no_gpus="there is no NVIDIA driver")


@pytest.mark.parametrize(
    ("machine", "engine", "words"),
    [
        (ONE_GPU, "cvcuda", "GPU 0, NVIDIA H100, with a hardware JPEG decoder, 79.0 of 80.0 GiB free"),
        (replace(ONE_GPU, gpus=(T4,)), "cvcuda", "without a hardware JPEG decoder"),
        (replace(ONE_GPU, gpus=(replace(H100, mig=True, jpeg=None),)), "cvcuda", "JPEG decoder unknown"),
        (replace(ONE_GPU, gpus=(H100, T4)), "cvcuda", "1 more GPU is not used"),
        (replace(ONE_GPU, gpus=(H100, T4, T4)), "cvcuda", "2 more GPUs are not used"),
        (replace(ONE_GPU, missing={"cvcuda": "cvcuda is not installed"}), "dali-gpu", "GPU 0"),
        (replace(ONE_GPU, missing={"cvcuda": "no a", "dali-gpu": "no b"}), "cpu", "16 cores .* cvcuda: no a; dali-gpu: no b$"),
        (NO_DRIVER, "cpu", "2 cores with the native core; no GPU engine, since there is no NVIDIA driver$"),
        (replace(NO_DRIVER, no_gpus=""), "cpu", "since there is no GPU"),
        (replace(NO_DRIVER, cores=1, without_native="it was not built"), "cpu", r"1 core without the native core \(it was not"),
        (replace(ONE_GPU, cuda=(11, 8), driver="520.6"), "cpu", "driver 520.6 runs CUDA 11.8 at most, and 12.0 is needed"),
        (replace(ONE_GPU, cuda=(0, 0)), "cvcuda", "GPU 0"),
        (replace(ONE_GPU, gpus=(replace(T4, name="Tesla P40", capability=(6, 1)),)), "cpu", "P40 has compute capability 6.1"),
        (replace(ONE_GPU, gpus=(replace(T4, capability=(0, 0)),)), "cvcuda", "GPU 0"),
        (replace(ONE_GPU, gpus=(replace(H100, free_bytes=GIB),)), "cpu", "1.0 of 80.0 GiB free, and 2.0 are needed"),
        (replace(ONE_GPU, gpus=(replace(H100, free_bytes=GPU_NEEDS_BYTES),)), "cvcuda", "2.0 of 80.0"),
        # Only the first is used, whatever a second would offer.
        (replace(ONE_GPU, gpus=(replace(T4, free_bytes=0), H100)), "cpu", "0.0 of 15.0 GiB free"),
    ],
)
def test_what_is_chosen_and_why(machine: Machine, engine: str, words: str) -> None:
    choice = choose(machine)
    assert choice.engine == engine
    assert (choice.gpu is None) == (engine == "cpu")
    assert re.search(words, choice.reason), choice.reason


gpus = st.builds(
    Gpu,
    index=st.integers(0, 7),
    uuid=st.sampled_from(["GPU-aa", "GPU-ab", "GPU-b", "MIG-c"]),
    name=st.just("G"),
    total_bytes=st.just(80 * GIB),
    free_bytes=st.integers(0, 80 * GIB),
    jpeg=st.sampled_from([True, False, None]),
    capability=st.tuples(st.integers(0, 12), st.integers(0, 9)),
    mig=st.booleans(),
)
machines = st.builds(
    Machine,
    cores=st.integers(1, 256),
    gpus=st.lists(gpus, max_size=3).map(tuple),
    no_gpus=st.sampled_from(["", "no driver"]),
    driver=st.just("1"),
    cuda=st.tuples(st.integers(0, 14), st.integers(0, 9)),
    missing=st.dictionaries(st.sampled_from(GPU_ENGINES), st.just("it lacks a library")),
    without_native=st.sampled_from(["", "not built"]),
)


@given(machines)
def test_there_is_always_a_choice_and_each_engine_before_it_has_its_reason(machine: Machine) -> None:
    choice = choose(machine)
    best_first = (*GPU_ENGINES, "cpu")
    assert [engine for engine, _ in choice.passed_over] == list(best_first[: best_first.index(choice.engine)])
    assert all(why for _, why in choice.passed_over)
    assert choice.reason
    assert "\n" not in choice.reason
    if choice.gpu is not None:
        assert choice.gpu == machine.gpus[0]
        assert choice.gpu.free_bytes >= GPU_NEEDS_BYTES
        assert choice.engine not in machine.missing
    else:
        assert all(why in choice.reason for _, why in choice.passed_over)


@pytest.mark.parametrize(
    ("setting", "shown"),
    [
        (None, "0123"),
        ("", ""),
        ("-1", ""),
        ("1,0", "10"),
        (" 2 , 1", "21"),
        ("0,9,1", "0"),
        ("1,1", "1"),
        ("GPU-ab", "1"),
        ("GPU-a", ""),  # two begin so
        ("GPU-b,0", "20"),
        ("MIG-", "3"),
        ("NoDevFiles", ""),
        ("3", "3"),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_does(setting: str | None, shown: str) -> None:
    names = ("GPU-aa", "GPU-ab", "GPU-b", "MIG-c")
    there = tuple(replace(H100, index=index, uuid=uuid, mig=index == 3) for index, uuid in enumerate(names))
    assert "".join(str(gpu.index) for gpu in visible(there, setting)) == shown
