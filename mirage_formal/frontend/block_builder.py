"""Front end for block graphs, which users write by hand and add to a program with ``graph.customized``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from mirage_formal.frontend.argument_checks import (
    Number,
    error_at_user_line,
    parse_dim,
    parse_dim3,
    parse_eps,
    parse_int,
    parse_map,
    parse_optional_dim,
    reject_unknown_options,
    warn_ignored,
)
from mirage_formal.frontend.elementwise_functions import Functions
from mirage_formal.frontend.handles import Handle, not_a_tensor_error, result_label, rule_error
from mirage_formal.frontend.shared_operators import operator_method
from mirage_formal.graph.graph import BlockGraph, InputIterator, Op, OutputSaver
from mirage_formal.graph.ops import NO_ATTRS, Attrs, BlockContext, OpKind
from mirage_formal.graph.type_rules import iterator_type, saver_type, shared_results, stage_fault
from mirage_formal.graph.types import DTensor, STensor
from mirage_formal.support.errors import GraphError, MirageError, ShapeError, UnsupportedError

_ACCUMULATORS: Final = {
    None: OpKind.ACCUM_SUM,
    "sum": OpKind.ACCUM_SUM_LAST,
    "mean": OpKind.ACCUM_MEAN_LAST,
    "rms": OpKind.ACCUM_RMS_LAST,
    "sum_todimx": OpKind.ACCUM_SUM_TO_DIMX,
}
_RESCALED: Final = {None: OpKind.ACCUM_RESCALED_SUM, "sum": OpKind.ACCUM_RESCALED_SUM_LAST}
_LOOP_HINT: Final = "forloop_accum takes a tensor from inside the loop to behind it; use it once on every path"


class BlockTensor(Handle):
    """A tensor in the shared memory of one block."""

    __slots__ = ("after_loop",)

    def __init__(self, graph: BlockBuilder, number: int, tensor: STensor, label: str) -> None:
        super().__init__(graph, number, tensor.shape, tensor.dtype, label)
        self.after_loop = tensor.after_loop

    @property
    def type(self) -> STensor:
        """Return its shape, element type and stage."""
        return STensor(self.shape, self.dtype, self.after_loop)


class MaximumChange(BlockTensor):
    """The last running maximum minus this one: not a tensor of the block, but an operand of ``exp`` alone.

    Its exponential is a rescaling factor. Before the first iteration there is no maximum, the difference is minus
    infinity, and the factor 0.
    """

    __slots__ = ("factor",)

    def __init__(self, factor: BlockTensor) -> None:
        super().__init__(factor.graph, factor.number, factor.type, "difference of maxima")
        self.factor = factor


class BlockBuilder(Functions[BlockTensor]):
    """Builder of a block graph.

    Args:
        grid_dim: Blocks along x, y, z.
        block_dim: Threads of one block along x, y, z.
        forloop_range: Iterations of the block's loop.
        reduction_dimx: Extent that sums to dimx keep.
    """

    def __init__(self, grid_dim: object, block_dim: object, forloop_range: int, reduction_dimx: int = 64) -> None:
        name = "new_threadblock_graph"
        self.grid = parse_dim3(name, "grid_dim", grid_dim)
        self.block = parse_dim3(name, "block_dim", block_dim)
        self.forloop_range = parse_int(name, "forloop_range", forloop_range)
        self.reduction_dimx = parse_int(name, "reduction_dimx", reduction_dimx)
        for what, value in (("forloop_range", self.forloop_range), ("reduction_dimx", self.reduction_dimx)):
            if value < 1:
                raise error_at_user_line(
                    ShapeError, f"{name}: expected {what} >= 1, got {value}", f"give a positive {what}"
                )
        self.sources: list[Handle] = []
        self._inputs: list[InputIterator] = []
        self._ops: list[Op] = []
        self._tensors: list[BlockTensor] = []
        self._outputs: list[OutputSaver] = []
        self.results: list[DTensor] = []

    def new_input(
        self, dtensor: Handle, input_map: object, forloop_dim: int | None = None, store_in_dmem: bool = False
    ) -> BlockTensor:
        """Add an input iterator over a device tensor.

        Args:
            dtensor: A tensor of the kernel graph.
            input_map: For each grid axis the dim that it splits; None or -1 where every block sees all of it.
            forloop_dim: The dim that the loop splits, after the grid; None or -1 to load once before the loop.
            store_in_dmem: Must be False.

        Returns:
            The tile of one block in one iteration.

        Raises:
            ShapeError: A dim does not exist or does not divide.
            GraphError: ``dtensor`` is no kernel tensor, or operators were added before.
            UnsupportedError: ``store_in_dmem`` is set.
        """
        if not isinstance(dtensor, Handle) or isinstance(dtensor, BlockTensor):
            raise not_a_tensor_error("new_input", dtensor, "a tensor of a kernel graph")
        if store_in_dmem:
            raise error_at_user_line(
                UnsupportedError, "new_input: store_in_dmem is not supported", "leave store_in_dmem out"
            )
        if self._ops:
            raise error_at_user_line(
                GraphError, f"new_input: {dtensor!r} comes after an operator", "make all inputs first"
            )
        iterator = InputIterator(
            parse_map("new_input", "input_map", input_map), parse_optional_dim("new_input", "forloop_dim", forloop_dim)
        )
        tile = iterator_type(self.grid, self.forloop_range, iterator, DTensor(dtensor.shape, dtensor.dtype))
        if isinstance(tile, str):
            hint = "grid and loop must divide the dims they split, the grid first"
            raise error_at_user_line(ShapeError, f"new_input: {dtensor!r}: {tile}", hint)
        self.sources.append(dtensor)
        self._inputs.append(iterator)
        return self._tensor(tile, dtensor.label)

    def new_output(
        self, stensor: BlockTensor, output_map: object, forloop_dim: int | None = None, epilogue: object = None
    ) -> None:
        """Add an output saver: the blocks' copies of a tensor behind the loop form a device tensor.

        Args:
            stensor: The tensor of one block.
            output_map: For each grid axis the dim along which the blocks' copies are joined; every axis of extent
                above 1 needs one.
            forloop_dim: Must be None or -1.
            epilogue: Must be None.

        Raises:
            ShapeError: The map does not fit.
            GraphError: The tensor is inside the loop.
            UnsupportedError: ``forloop_dim`` or ``epilogue`` is set.
        """
        from mirage_formal.frontend.mirage_api.table import unsupported_name_error  # it imports this module

        if epilogue is not None:
            raise unsupported_name_error("new_output(epilogue)", f"new_output: expected no epilogue, got {epilogue!r}")
        tensor = self._own("new_output", stensor)
        if parse_optional_dim("new_output", "forloop_dim", forloop_dim) is not None:
            hint = "accumulate before the saver; leave forloop_dim out"
            raise error_at_user_line(UnsupportedError, f"new_output: expected no forloop_dim, got {forloop_dim}", hint)
        saver = OutputSaver(tensor.number, parse_map("new_output", "output_map", output_map))
        found = saver_type(self.grid, saver, tensor.type)
        if isinstance(found, str):
            error: type[MirageError] = ShapeError if tensor.after_loop else GraphError
            hint = "give a dim for every grid axis above 1" if tensor.after_loop else _LOOP_HINT
            raise error_at_user_line(error, f"new_output: {tensor!r}: {found}", hint)
        self._outputs.append(saver)
        self.results.append(found)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Names of the reference system that block graphs here have not: refused by their row of the table."""
            from mirage_formal.frontend.mirage_api.table import missing_attribute_error

            raise missing_attribute_error("TBGraph", name, type(self).__name__)

    def rms_norm(self, A: BlockTensor, dim: int = -1, eps: Number | None = None) -> BlockTensor:
        """Return the root-mean-square norm x / sqrt(mean of x^2 + eps) along one dim.

        Args:
            A: The tensor, x in the formula.
            dim: The dim; negative ones count from the last.
            eps: An exact constant under the root; none if left out.

        Returns:
            A tensor of A's shape.

        Raises:
            GraphError: A is no tensor of this block graph.
            ShapeError: There is no such dim.
        """
        a = self._own("rms_norm", A)
        found = parse_dim("rms_norm", dim, a.num_dims, repr(a))
        return self._one(OpKind.RMS_NORM, (a,), Attrs(dim=found, eps=parse_eps("rms_norm", eps)))

    mean = operator_method(Functions._along, OpKind.MEAN, "mean")
    max = operator_method(Functions._along, OpKind.MAX, "maximum")

    def reduction_to_dimx(self, A: BlockTensor, dim: int) -> BlockTensor:
        """Return the sums of every reduction_dimx-th element of one dim.

        Args:
            A: The tensor.
            dim: The dim; negative ones count from the last.

        Returns:
            A tensor of A's shape with extent reduction_dimx at the dim.

        Raises:
            GraphError: A is no tensor of this block graph.
            ShapeError: There is no such dim, or reduction_dimx does not divide it.
        """
        return self._along(OpKind.SUM_TO_DIMX, A, dim)

    def reduction_max(self, A: BlockTensor, dim: int) -> tuple[BlockTensor, BlockTensor]:
        """Return the running maximum over one dim and the iterations so far, and the last maximum minus this one.

            top, moved = block.reduction_max(scores, 2)
            weights, factor = block.exp(block.sub(scores, top)), block.exp(moved)
            total = block.forloop_accum_rescale(weights, factor, "sum")

        Args:
            A: A tensor inside the loop.
            dim: The dim, which stays with extent 1.

        Returns:
            The maximum, and the difference, whose only use is ``exp``: the factor for ``forloop_accum_rescale``, which
            is 0 in the first iteration, when there is nothing to rescale.

        Raises:
            GraphError: A is no tensor of this block graph, or behind the loop.
            ShapeError: There is no such dim.
        """
        a = self._own("reduction_max", A)
        attrs = Attrs(dim=parse_dim("reduction_max", dim, a.num_dims, repr(a)))
        running, factor = self._apply(OpKind.RUNNING_MAX, (a,), attrs)
        return running, MaximumChange(factor)

    def exp(self, A: BlockTensor) -> BlockTensor:
        """Return the exponential y = e^x, element by element.

        Of the difference that ``reduction_max`` returns, it is the rescaling factor.

        Args:
            A: The tensor, x in the formula.

        Returns:
            A tensor of A's shape.

        Raises:
            GraphError: A is no tensor of this block graph.
        """
        if isinstance(A, MaximumChange) and A.graph is self:
            return A.factor
        return super().exp(A)

    def forloop_accum(self, A: BlockTensor, acc: str | None = None) -> BlockTensor:
        """Return the sum over the iterations of the loop.

        Args:
            A: A tensor inside the loop.
            acc: None, or what is done over the last dim as well: "sum", "mean", "rms", or "sum_todimx", which keeps
                reduction_dimx elements of it.

        Returns:
            The sum, behind the loop.

        Raises:
            UnsupportedError: There is no such ``acc``.
            GraphError: A is no tensor of this block graph, or behind the loop.
        """
        if acc not in _ACCUMULATORS:
            raise error_at_user_line(
                UnsupportedError, f"forloop_accum: expected acc None, {_texts(_ACCUMULATORS)}, got {acc!r}", "fix acc"
            )
        return self._one(_ACCUMULATORS[acc], (self._own("forloop_accum", A),))

    def forloop_accum_rescale(self, A: BlockTensor, B: BlockTensor, acc: str | None = None) -> BlockTensor:
        """Return the sum over the iterations in which the sum so far is multiplied by B before A is added.

        Args:
            A: A tensor inside the loop.
            B: The factor: ``exp`` of the difference that ``reduction_max`` returns.
            acc: None, or "sum" to sum over the last dim as well.

        Returns:
            The sum, behind the loop.

        Raises:
            UnsupportedError: There is no such ``acc``.
        """
        if acc not in _RESCALED:
            text = f"forloop_accum_rescale: expected acc None, {_texts(_RESCALED)}, got {acc!r}"
            raise error_at_user_line(UnsupportedError, text, "fix acc")
        name = "forloop_accum_rescale"
        return self._one(_RESCALED[acc], (self._own(name, A), self._own(name, B)))

    def forloop_accum_max(self, A: BlockTensor) -> BlockTensor:
        """Return the maximum over the iterations of the loop.

        Args:
            A: A tensor inside the loop.

        Returns:
            The maximum, behind the loop.

        Raises:
            GraphError: A is no tensor of this block graph, or behind the loop.
        """
        return self._unary(OpKind.ACCUM_MAX, A)

    def forloop_concat(self, A: BlockTensor, dim: int) -> BlockTensor:
        """Return the iterations' tensors, concatenated along one dim.

        Args:
            A: A tensor inside the loop.
            dim: The dim; negative ones count from the last.

        Returns:
            A tensor behind the loop, whose extent at the dim is larger by the loop's range.

        Raises:
            GraphError: A is no tensor of this block graph, or behind the loop.
            ShapeError: There is no such dim.
        """
        return self._along(OpKind.ACCUM_CONCAT, A, dim)

    def freeze(self) -> BlockGraph:
        """Return the block graph as a frozen value.

        Raises:
            GraphError: It has no output.
        """
        if not self._outputs:
            raise error_at_user_line(
                GraphError, "block graph: expected at least one output, got none", "call new_output"
            )
        return BlockGraph(
            grid=self.grid,
            block=self.block,
            forloop_range=self.forloop_range,
            reduction_dimx=self.reduction_dimx,
            inputs=tuple(self._inputs),
            ops=tuple(self._ops),
            outputs=tuple(self._outputs),
        )

    def _tensor(self, tensor: STensor, label: str) -> BlockTensor:
        handle = BlockTensor(self, len(self._tensors), tensor, label)
        self._tensors.append(handle)
        return handle

    def _own(self, operator: str, value: object) -> BlockTensor:
        if not isinstance(value, BlockTensor) or value.graph is not self:
            raise not_a_tensor_error(operator, value, "a tensor of this block graph")
        if isinstance(value, MaximumChange):
            hint = "its only use is exp: forloop_accum_rescale(A, exp(difference))"
            raise error_at_user_line(
                GraphError, f"{operator}: expected a tensor of this block graph, got the {value!r}", hint
            )
        return value

    def _align(self, kind: OpKind, a: BlockTensor, b: BlockTensor) -> tuple[BlockTensor, BlockTensor]:
        return a, b

    def _apply(
        self, kind: OpKind, operands: tuple[BlockTensor, ...], attrs: Attrs = NO_ATTRS
    ) -> tuple[BlockTensor, ...]:
        types = tuple(t.type for t in operands)
        if (stage := stage_fault(kind, tuple(t.after_loop for t in operands))) is not None:
            given = ", ".join(map(repr, operands))
            raise error_at_user_line(GraphError, f"{kind.value}: {stage} (operands {given})", _LOOP_HINT)
        results = shared_results(kind, attrs, types, BlockContext(self.forloop_range, self.reduction_dimx))
        if isinstance(results, str):
            raise rule_error(kind, results, operands, attrs)
        self._ops.append(Op(kind, tuple(t.number for t in operands), attrs))
        label = result_label(kind, operands, len(self._tensors))
        return tuple(self._tensor(result, label) for result in results)


def _texts(table: dict[str | None, OpKind]) -> str:
    return ", ".join(repr(key) for key in table if key is not None)


def new_threadblock_graph(
    grid_dim: object, block_dim: object, forloop_range: int, reduction_dimx: int = 64, **more: object
) -> BlockBuilder:
    """Return a new block graph.

    Args:
        grid_dim: Blocks along x, y, z.
        block_dim: Threads of one block along x, y, z.
        forloop_range: Iterations of the block's loop.
        reduction_dimx: Extent that sums to dimx keep.
        more: Options of the reference system: ``cluster_dim`` must be (1, 1, 1); ``pipe_stage`` and
            ``num_warp_groups`` have no effect and warn.

    Returns:
        A block graph without inputs, for ``Graph.customized``.

    Raises:
        ShapeError: A number is not positive.
        UnsupportedError: Blocks shall form clusters, or there is no such option.
    """
    from mirage_formal.frontend.mirage_api.table import unsupported_name_error  # it imports this module

    name = "new_threadblock_graph"
    for option, value in more.items():
        if option == "cluster_dim":
            if (cluster := parse_dim3(name, option, value)) != (1, 1, 1):
                raise unsupported_name_error(
                    f"{name}(cluster_dim)", f"{name}: expected cluster_dim (1, 1, 1), got {cluster}"
                )
        elif option in ("pipe_stage", "num_warp_groups"):
            warn_ignored(f"{name} option {option}")
        else:
            reject_unknown_options(name, [option], ("grid_dim", "block_dim", "forloop_range", "reduction_dimx"))
    return BlockBuilder(grid_dim, block_dim, forloop_range, reduction_dimx)
