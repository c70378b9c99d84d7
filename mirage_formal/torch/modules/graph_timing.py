"""GPU timing of two functions that compute the same, by which a backend decides which to keep.

A time is that of the device: calls are captured in a CUDA graph and replayed by the protocol of
``mirage_formal.device.measure``. Inputs are drawn, as compilers have none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch

from mirage_formal.device.measure import TorchRecorder, measure
from mirage_formal.errors import MirageError
from mirage_formal.torch.modules.operators import once

#: What a time must be below another one, as a factor, to count as less: repeated measurements are closer than this.
CLEARLY: Final = 0.99
_SCALE: Final = 0.1
_SEED: Final = 12345
#: Rounds in which all that is compared is timed in turns; the least counts, because disturbances only add time.
_ROUNDS: Final = 3

#: Of torch and the driver, memory that is short among them; of launches.
_FAILURES: Final = (RuntimeError, MirageError)

#: Held while something is timed. Programs that compile in several processes at once set it to a lock of theirs.
alone: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass(frozen=True, slots=True)
class Timed:
    """Measured microseconds of two functions that compute the same.

    Attributes:
        ours: With operators made of candidates.
        theirs: Without.
    """

    ours: float
    theirs: float

    @property
    def faster(self) -> bool:
        """Return whether ours is, clearly."""
        return self.ours < CLEARLY * self.theirs


def drawn(inputs: Sequence[Any], seed: int = _SEED) -> list[Any]:
    """Tensors with memory like those that are given, which may be fake: random numbers, ones for booleans, else zeros.

    Whole numbers are mostly indices, of which 0 exists.
    """
    made: list[Any] = []
    for number, x in enumerate(inputs):
        if not isinstance(x, torch.Tensor):
            made.append(x)
            continue
        place = torch.empty_strided(tuple(x.shape), tuple(x.stride()), dtype=x.dtype, device=x.device)
        if x.dtype.is_floating_point:
            made.append(_filled(place, seed + number))
        else:
            made.append(place.fill_(x.dtype is torch.bool))
    return made


def _filled(place: Any, seed: int) -> Any:
    """Normal numbers in a tensor, which may have strides of 0."""
    generator = torch.Generator(place.device).manual_seed(seed)
    part = once(place, place.stride())
    values = torch.randn(part.shape, generator=generator, device=place.device, dtype=torch.float32)
    part.copy_(values * _SCALE)
    return place


def compared(ours: Callable[..., Any], theirs: Callable[..., Any], inputs: Sequence[Any]) -> Timed | None:
    """Time two functions in turns; None where that cannot be done: one cannot be captured, or memory is short.

    Args:
        ours: A function of tensors.
        theirs: Another one that computes the same.
        inputs: Tensors like those that it is called on.
    """
    size = sum(x.numel() * x.element_size() for x in inputs if isinstance(x, torch.Tensor))
    sets: dict[int, list[Any]] = {}

    def made(seed: int) -> list[Any]:
        if seed not in sets:
            sets[seed] = drawn(inputs, _SEED + 1000 * seed)
        return sets[seed]

    times: dict[Callable[..., Any], list[float]] = {ours: [], theirs: []}
    with _at(inputs):
        try:
            with alone():
                for _ in range(_ROUNDS):
                    for call in (ours, theirs):
                        found = measure(_spread(call), made, size, TorchRecorder(), outputs=())
                        times[call].append(found.us)
        except _FAILURES:
            return None
        finally:
            sets.clear()
    return Timed(min(times[ours]), min(times[theirs]))


def alike(ours: Callable[..., Any], theirs: Callable[..., Any], inputs: Sequence[Any]) -> bool:
    """Return whether two functions give the same tensors for one draw of inputs, and leave the same in what they write.

    The same is what ``torch.testing.assert_close`` takes for it by the type of the elements. Where a call fails they
    are not alike.

    Args:
        ours: A function of tensors that gives several.
        theirs: Another one.
        inputs: Tensors like those that it is called on.
    """

    def tensors(call: Callable[..., Any]) -> list[Any]:
        given = drawn(inputs)
        return [x for x in (*call(*given), *given) if isinstance(x, torch.Tensor)]

    with _at(inputs):
        try:
            with alone():  # what others time meanwhile would take longer
                torch.testing.assert_close(tensors(ours), tensors(theirs), equal_nan=True)
        except (AssertionError, *_FAILURES):
            return False
    return True


@contextmanager
def _at(inputs: Sequence[Any]) -> Iterator[None]:
    """Without gradients, on the GPU that tensors are on; what was allocated there and is free again is given back."""
    # Capture and events are those of the current GPU, which need not be the one that the tensors are on.
    where = next((torch.cuda.device(x.device) for x in inputs if isinstance(x, torch.Tensor) and x.is_cuda), None)
    with torch.no_grad(), where or nullcontext():
        try:
            yield
        finally:
            if where is not None:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()


def _spread(call: Callable[..., Any]) -> Callable[[Sequence[Any]], Any]:
    """A function of a list of tensors."""
    return lambda given: call(*given)


__all__ = ["CLEARLY", "Timed", "alike", "alone", "compared", "drawn"]
