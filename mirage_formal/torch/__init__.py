"""Import of PyTorch modules as programs.

Takes a torch.nn.Module and its arguments. Returns a program, and the module with proved kernels in the place of its
regions. Imports api, cache, codegen, device, frontend, graph, kernel_build, partition, records, run, semantics and
support.

Torch is an optional dependency: importing this package does not load it, and without it every entry point says what to
install.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from mirage_formal.api import Graph
from mirage_formal.frontend.argument_checks import error_at_user_line, reject_unknown_options
from mirage_formal.frontend.mirage_api.table import unsupported_name_error
from mirage_formal.support.errors import UnsupportedError
from mirage_formal.support.garbage import pause_garbage_collection
from mirage_formal.support.resources import install_command
from mirage_formal.torch.deadline import now

if TYPE_CHECKING:
    from mirage_formal.torch.import_result import Imported

_OLDEST: Final = (2, 11)


def from_torch(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, rounding: str = "fused"
) -> Imported:
    """Import a module or function as programs, for arguments of given shapes and element types.

    Args:
        module: A ``torch.nn.Module`` or a function of tensors. Modules in training keep their dropout, which stays with
            torch: call ``eval()`` first.
        args: The arguments; tensors on the meta device are enough.
        kwargs: Further arguments by name.
        rounding: Which roundings to a narrower element type are operators of the program. "fused": casts whose result
            becomes a wider type again, as torch.compile does; others are left to whatever stores a result, and the
            report lists them. "exact": all casts, and the results of all operators on narrower types.

    Returns:
        ``graph`` is the program, if one computes all that depends on an argument; ``regions`` are the parts otherwise.
        ``report()`` names every operator that stays with torch, with the user's line and the reason.

    Raises:
        UnsupportedError: Torch is not installed or too old, torch.export has no graph of the module, or there is no
            such rounding.
    """
    require_torch("from_torch")
    from mirage_formal.torch.capture import capture
    from mirage_formal.torch.convert import import_captured

    return import_captured(capture(module, args, kwargs), rounding)


def optimize(
    module: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    shapes: Mapping[str | int, Mapping[int, tuple[int, int, int]]] | None = None,
    rounding: str = "fused",
    guard: bool = False,
    **options: Any,
) -> Any:
    """Return an equivalent module, with operators made of candidates where they are expected to be faster.

    It has the module's class, state, parts and hooks, and shares them with it: parameters are read at each call.
    Calls that the import does not hold for are computed as before, which a warning says once: other extents, strides,
    element types, devices or structures of arguments or parameters, other parts or hooks in them, training instead of
    not or the other way round, automatic casts.

    Args:
        module: A ``torch.nn.Module`` or a function of tensors.
        args: Arguments of the shapes and element types, and on the device, that later calls have.
        kwargs: Further arguments by name; later calls have the same names.
        shapes: Extents that vary between calls: for the names or numbers of arguments that are tensors, for the
            numbers of dims, (lowest, highest, step). Each bucket of ``step`` lengths has a program of its own; dims
            that have to be equal to these vary with them.
        rounding: "fused" or "exact"; see ``from_torch``.
        guard: Whether each call looks at the conditions of its regions, such as that no divisor is 0, and is computed
            by the module itself where one does not hold. It costs a reduction for each, and what they are about.
        options: Options of ``superoptimize``. ``time_limit`` is the seconds for all searches together, 600 by default;
            None is no limit. ``accept`` is "equivalent" by default. ``out`` is a directory with one for each region.
            ``accept_kernels`` is "proved" by default: only kernels that are proved to compute their µGraph are
            installed; "tested" takes others as well, which the report names.
            ``mode`` is one of torch.compile's, as in "max-autotune", "default" if left out. On a GPU the module is
            timed as torch.compile makes it in this mode, and with operators made of candidates, the rest compiled in
            this mode or not; the fastest is what calls run. With "max-autotune", or a mode that starts so, the option
            ``backend`` is "auto" by default where ``accept_kernels`` is "tested". Inductor makes no CUDA graphs.
            ``continue_in_background``, False by default, is whether searches that the time limit has ended, or left no
            time for, continue in a process at the lowest priority after this call. Their results are installed between
            two calls of the module. The call that comes next waits for it, some tenths of a second to seconds: proofs
            are replayed, and the candidate is compared with torch; on a GPU kernels are also compiled and timed, in at
            most a quarter of the time limit. It needs the store: with ``out``, ``cache=False`` or ``shapes`` it is an
            error.

    Returns:
        The module; ``mirage_report()`` of it says what became of each region, and what stays with torch.
        ``mirage_background()`` is the search in the background, which has a ``state``, ``stop`` and ``wait``.

    Raises:
        UnsupportedError: Torch is not installed or too old, there are no arguments, torch.export has no graph of the
            module, or parts of it have hooks. Or the module is a graph: the reference system had this name for
            ``superoptimize`` once.
        ShapeError: ``shapes`` names no tensor, dim or lengths, or the module needs one extent.
        MirageError: An option is at fault.
    """
    if isinstance(module, Graph):
        raise unsupported_name_error("optimize")
    begin = now()
    require_torch("optimize")
    if args is None:
        text = "optimize: expected arguments of the module, as later calls have them, got none"
        raise error_at_user_line(UnsupportedError, text, "write optimize(module, (x,))")
    with pause_garbage_collection():
        from mirage_formal.api.request import Options
        from mirage_formal.torch.modules.optimize import ModuleOptions, optimize_module

    reject_unknown_options("optimize", options, (*Options.__annotations__, "mode", "continue_in_background"))
    asked = {"time_limit": 600.0, "accept": "equivalent", **options}
    further = ModuleOptions(shapes, rounding, guard, asked.pop("mode", None), begin)
    return optimize_module(module, (args, kwargs or {}), asked, further)


def require_torch(entry: str) -> None:
    """Raise an error that says what to install if torch is missing or too old; ``entry`` is the called function."""
    hint = f"install it with: {install_command('torch')}"
    try:
        import torch
    except ImportError:
        raise error_at_user_line(UnsupportedError, f"{entry}: expected torch, got none", hint) from None
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < _OLDEST:
        raise error_at_user_line(
            UnsupportedError, f"{entry}: expected torch 2.11 or later, got {torch.__version__}", hint
        )


__all__ = ["from_torch", "optimize", "require_torch"]
