"""A torch without torch: tensors are NumPy arrays that say where they lie and whether autograd knows them.

To be put in sys.modules as ``torch``, so that what the launcher asks of torch tensors is tested where it is not
installed; tests/device/test_gradients.py runs the same tests on the real one where there is one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.kit.runs.fake_cupy import aligned


class Tensor:
    """The few things of torch.Tensor that are used; on a GPU, device memory is host memory."""

    def __init__(self, host: np.ndarray, dtype: str, device: int = -1, requires_grad: bool = False) -> None:
        self.host = host
        self._dtype = sys.intern(dtype)  # element types are one object each
        self._device = device
        self.requires_grad = requires_grad
        self.made_for_inference = False

    @property
    def is_cuda(self) -> bool:
        return self._device >= 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.host.shape

    @property
    def dtype(self) -> str:
        return self._dtype

    def get_device(self) -> int:
        return self._device

    def data_ptr(self) -> int:
        return self.host.ctypes.data

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.host.itemsize for step in self.host.strides)

    def detach(self) -> Tensor:
        return Tensor(self.host, self._dtype, self._device)

    def contiguous(self) -> Tensor:
        return Tensor(np.ascontiguousarray(self.host), self._dtype, self._device)

    def view(self, dtype: str) -> Tensor:
        return Tensor(self.host.view(dtype.removeprefix("torch.")), dtype, self._device)

    def numpy(self) -> np.ndarray:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad.")
        return self.host


class Parameter(Tensor):
    """A tensor of a module, which requires a gradient."""

    def __init__(self, host: np.ndarray, dtype: str, device: int = -1) -> None:
        super().__init__(host, dtype, device, requires_grad=True)


_Tensor = Tensor  # inside the class below, the name is that of an attribute


class FakeTorch:
    """The module: element types are their names."""

    Tensor = Tensor
    float16, float32, int16, int32 = (sys.intern(f"torch.{n}") for n in ("float16", "float32", "int16", "int32"))

    def __init__(self) -> None:
        self._recording = True
        self._inference = False
        self.nn = SimpleNamespace(Parameter=Parameter)
        self.cuda = SimpleNamespace(current_stream=lambda device: SimpleNamespace(cuda_stream=7))
        torch = self

        def copy_(target: Tensor, source: Tensor) -> Tensor:
            if target.made_for_inference and not torch._inference:
                raise RuntimeError("Inplace update to inference tensor outside InferenceMode is not allowed.")
            if target.requires_grad and torch._recording:
                raise RuntimeError("a leaf Variable that requires grad is being used in an in-place operation.")
            target.host[...] = source.host
            return target

        Tensor.copy_ = copy_  # type: ignore[attr-defined]

    def is_grad_enabled(self) -> bool:
        return self._recording

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        with self._set(False, self._inference):
            yield

    @contextmanager
    def inference_mode(self) -> Iterator[None]:
        with self._set(False, True):
            yield

    @contextmanager
    def _set(self, recording: bool, inference: bool) -> Iterator[None]:
        before = self._recording, self._inference
        self._recording, self._inference = recording, inference
        try:
            yield
        finally:
            self._recording, self._inference = before

    def from_numpy(self, host: np.ndarray) -> _Tensor:
        made = Tensor(host, f"torch.{host.dtype.name}")
        made.made_for_inference = self._inference
        return made

    def device(self, kind: str, number: int) -> int:
        assert kind == "cuda"
        return number

    def empty(self, shape: tuple[int, ...], dtype: str, device: int) -> Any:
        return Tensor(aligned(np.zeros(shape, dtype.removeprefix("torch."))), dtype, device)
