"""Opening a GPU, and naming it as every process does that sees it. Never run on a GPU (docs/gpu.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from headrace.core.errors import TransportUnavailable
from headrace.wire.device_memory import Device, DeviceMemory

if TYPE_CHECKING:
    from headrace.wire.cuda_calls import Context


def open_device(ordinal: int) -> Device:
    """The GPU of that ordinal in this process. No context is made before memory is used.

    Raises TransportUnavailable: no bindings, no driver, one that is too old, no such GPU.
    """
    try:
        from headrace.wire.cuda_calls import Context
        from headrace.wire.cuda_legacy import LegacyMemory
        from headrace.wire.cuda_vmm import VmmMemory
    except ImportError as error:
        raise TransportUnavailable(
            f"sharing GPU memory needs {error.name or 'cuda-bindings'}: pip install 'headrace[gpu]'", reason="no bindings"
        ) from error
    context = Context(ordinal)
    name = context.name()
    uuid = uuid_text(context.uuid(), mig="MIG " in name)
    memories: list[DeviceMemory] = []
    lacks = ""
    vmm = "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED"
    missing = [attribute for attribute in vmm if not context.attribute(attribute)]
    if missing:
        lacks = f"vmm: the driver says no to {', '.join(missing)}"
    else:
        memories.append(VmmMemory(context))
    memories.append(LegacyMemory(context))
    return Device(uuid, name, tuple(memories), lacks)


def open_pinner(ordinal: int) -> Context:
    """What pins host memory for the GPU of that ordinal; after `open_device`. Raises TransportUnavailable."""
    from headrace.wire.cuda_calls import Context

    return Context(ordinal)


def uuid_text(data: bytes, *, mig: bool = False) -> str:
    """A GPU's UUID as nvidia-smi writes it; a MIG instance has one of its own."""
    return f"{'MIG' if mig else 'GPU'}-{UUID(bytes=data)}"
