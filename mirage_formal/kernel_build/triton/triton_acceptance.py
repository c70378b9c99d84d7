"""Condition of running Triton files: a caller accepts kernels that are tested, and not proved."""

from __future__ import annotations

from typing import Final

from mirage_formal.kernel_build.built_kernels import Acceptance
from mirage_formal.support.errors import SpaceError
from mirage_formal.support.options import Backend, check_value

_WHY: Final = "Triton files are tested, not proved to compute their µGraph"


def accepted_backend(
    backend: object, accept: Acceptance, option: str = "backend", cure: str = "accept_kernels='tested'"
) -> tuple[str, str]:
    """Return the back end that a call has, and one line that says why it is not the given one; empty if it is.

    Sound: no Triton file is chosen unless tested kernels are accepted; "auto" is "cuda" otherwise.

    Args:
        backend: "cuda", "triton" or "auto".
        accept: The kernels that calls may run.
        option: Name of the option of the back end, for messages.
        cure: The option that accepts tested kernels, for messages.

    Raises:
        SpaceError: There is no such back end; or it is "triton", and only proved kernels are accepted.
    """
    check_value(option, backend, Backend)
    if accept is Acceptance.TESTED or backend == "cuda":
        return str(backend), ""
    if backend == "triton":
        what = f"expected cuda or auto where only proved kernels are accepted, got triton: {_WHY}"
        hint = f"add {cure}, or leave {option} out for CUDA kernels, which are proved"
        raise SpaceError(what, where=option, hint=hint)
    return "cuda", f"back end auto: CUDA C++: {_WHY}; with {cure} auto may choose them"


__all__ = ["accepted_backend"]
