"""GPU timing of two equivalent functions, by which a backend decides which to keep.

A time is that of the device: calls are captured in a CUDA graph and replayed by the protocol of
``mirage_formal.device.measure``. Inputs are generated, because compilers have no real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch

from mirage_formal.device import measure
from mirage_formal.support.errors import MirageError
from mirage_formal.torch.modules.custom_operators import distinct_elements

#: Largest ratio of two times that counts as faster; repeated measurements differ by half as much.
CLEARLY: Final = 0.98
_SCALE: Final = 0.1
_SEED: Final = 12345
#: Rounds of interleaved timing; the least time counts, because disturbances only add time.
_ROUNDS: Final = 3

#: Errors of torch and the driver, such as lack of memory; and of launches.
_FAILURES: Final = (RuntimeError, MirageError)


@dataclass(frozen=True, slots=True)
class TimedPair:
    """Measured microseconds of two equivalent functions.

    Attributes:
        ours: Time with operators made of candidates.
        theirs: Time without these operators.
    """

    ours: float
    theirs: float

    @property
    def faster(self) -> bool:
        """Return whether ours is faster by more than the measurement error."""
        return self.ours < CLEARLY * self.theirs


def draw_inputs(inputs: Sequence[Any], seed: int = _SEED) -> list[Any]:
    """Return tensors like the given ones, which may be fake: random numbers, ones for booleans, zeros for integers.

    Integers are mostly indices, for which 0 is valid.
    """
    made: list[Any] = []
    for number, x in enumerate(inputs):
        if not isinstance(x, torch.Tensor):
            made.append(x)
            continue
        place = torch.empty_strided(tuple(x.shape), tuple(x.stride()), dtype=x.dtype, device=x.device)
        if x.dtype.is_floating_point:
            made.append(_fill_random(place, seed + number))
        else:
            made.append(place.fill_(x.dtype is torch.bool))
    return made


def _fill_random(place: Any, seed: int) -> Any:
    """Fill a tensor, which may have strides of 0, with normal numbers."""
    generator = torch.Generator(place.device).manual_seed(seed)
    part = distinct_elements(place, place.stride())
    values = torch.randn(part.shape, generator=generator, device=place.device, dtype=torch.float32)
    part.copy_(values * _SCALE)
    return place


def time_interleaved(ours: Callable[..., Any], theirs: Callable[..., Any], inputs: Sequence[Any]) -> TimedPair | None:
    """Time two functions in turns; return None if one cannot be captured, or memory is short.

    Args:
        ours: A function of tensors.
        theirs: An equivalent function.
        inputs: Tensors like those of its calls.
    """
    size = sum(x.numel() * x.element_size() for x in inputs if isinstance(x, torch.Tensor))
    sets: dict[int, list[Any]] = {}

    def made(seed: int) -> list[Any]:
        if seed not in sets:
            sets[seed] = draw_inputs(inputs, _SEED + 1000 * seed)
        return sets[seed]

    times: dict[Callable[..., Any], list[float]] = {ours: [], theirs: []}
    with _without_gradients_on_device(inputs):
        try:
            with measure.timing_lock:
                for _ in range(_ROUNDS):
                    for call in (ours, theirs):
                        found = measure.measure(_call_with_list(call), made, size, measure.TorchRecorder(), outputs=())
                        times[call].append(found.us)
        except _FAILURES:
            return None
        finally:
            sets.clear()
    return TimedPair(min(times[ours]), min(times[theirs]))


def have_equal_results(ours: Callable[..., Any], theirs: Callable[..., Any], inputs: Sequence[Any]) -> bool:
    """Return whether two functions return and write equal tensors for one set of random inputs.

    Tensors are equal by ``torch.testing.assert_close`` for their element type. If a call fails, the result is False.

    Args:
        ours: A function of tensors that returns several.
        theirs: Another one.
        inputs: Tensors like those of its calls.
    """

    def tensors(call: Callable[..., Any]) -> list[Any]:
        given = draw_inputs(inputs)
        return [x for x in (*call(*given), *given) if isinstance(x, torch.Tensor)]

    with _without_gradients_on_device(inputs):
        try:
            with measure.timing_lock:  # a concurrent measurement would be disturbed
                torch.testing.assert_close(tensors(ours), tensors(theirs), equal_nan=True)
        except (AssertionError, *_FAILURES):
            return False
    return True


@contextmanager
def device_context(inputs: Sequence[Any]) -> Iterator[Any]:
    """Select the GPU of the tensors, which need not be the current one, in this thread; yield it, or None."""
    where = next((x.device for x in inputs if isinstance(x, torch.Tensor) and x.is_cuda), None)
    with nullcontext() if where is None else torch.cuda.device(where):
        yield where


@contextmanager
def _without_gradients_on_device(inputs: Sequence[Any]) -> Iterator[None]:
    """Disable gradients and select the GPU of the tensors; afterwards release the memory that is free again."""
    with torch.no_grad(), device_context(inputs) as where:
        try:
            yield
        finally:
            if where is not None:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()


def _call_with_list(call: Callable[..., Any]) -> Callable[[Sequence[Any]], Any]:
    """Return a function that takes a list of tensors and passes them as separate arguments."""
    return lambda given: call(*given)


__all__ = ["CLEARLY", "TimedPair", "device_context", "draw_inputs", "have_equal_results", "time_interleaved"]
