"""Preprocessing of a program for the search: removal of maxima that cancel, and of views at inputs and outputs.

The passes of ``preprocess``, in order; a rewritten program is used only where the prover shows that it is equal:

1. ``_simplify``: constants are folded, and equal operators are merged.
2. ``_without_maxima``: maxima that cancel are left out.
3. ``normalize_layout_ops``: slices, transposes and pads move to the inputs, merged leading dims to the outputs.
4. ``_strip_views``: views of inputs and of results are removed from the program.
5. ``hoist_layout_ops``, if the result of 4 has no matrix product and still moves elements: it starts again from the
   result of 2, and moves all that it can to the inputs. Then 4 is done again; the result is used if no move remains.

Programs of more than ``_MOST_OPERATORS`` operators have pass 4 only.

Maxima. Programs subtract the largest element of a row before they take exponentials, so that these stay in range:
softmax(x) = e^(x - m) / sum of e^(x - m), and log of the sum of e^x = m + log of the sum of e^(x - m). The values are
the same for m = max x, for any other number, and for max(max x, c), which is finite where x is not. A search would have
to find the same maximum in every candidate. Without it, the search finds the kernels of the plain form, for which code
generation derives a running maximum again (``codegen.online_softmax``). The maximum of one element is that element.

Views. A transpose, a slice or a reshape of an input is an access to it under other strides (``graph.storage_views``),
so the search sees its result as an input. Where views stand between operators, the program is rewritten first
(``search.normalize_layout_ops``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from msgspec import Struct

from mirage_formal.graph.edit import eliminate_dead_code, renumber_graph
from mirage_formal.graph.graph import Input, KernelGraph, KernelOp, Op, enumerate_results
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.remainder_tiles.split import BoundaryOperators, split_at
from mirage_formal.graph.storage_views import kernel_count, moved_tensors, storage_locations, trailing_moves
from mirage_formal.graph.types import row_major
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import faults, kernel_types
from mirage_formal.rewrite.failure import MatchFailure, none_on_match_failure
from mirage_formal.rewrite.fold_constants import fold_constant
from mirage_formal.rewrite.graph_builders import KernelGraphBuilder
from mirage_formal.rewrite.replacement_rules import apply_rules
from mirage_formal.search.concatenated_inputs import fuse_concatenations, pad_expressions, reading_operator
from mirage_formal.search.hoist_layout_ops import hoist_layout_ops
from mirage_formal.search.normalize_layout_ops import normalize_layout_ops

#: Operators of one operand that map zeros to zeros.
_OF_ZERO = frozenset(
    {OpKind.MAX, OpKind.SUM, OpKind.MEAN, OpKind.RESHAPE, OpKind.TRANSPOSE, OpKind.REPEAT, OpKind.SCALE, OpKind.SLICE}
)
#: Larger programs are not searched as one, and proofs about them take long: they are left as they are.
_MOST_OPERATORS = 32
#: Decides whether a rewritten program counts as equal to the program.
_EqualityTest = Callable[[KernelGraph, KernelGraph], bool]


class PreprocessedProgram(Struct, frozen=True):
    """A preprocessed program, with the views that connect it to the given one.

    Attributes:
        program: The program that is searched.
        inputs: The inputs of the program as it was given.
        wrapping: The views of these that are the inputs of ``program``, and those of its results; None if there are
            none.
    """

    program: KernelGraph
    inputs: tuple[Input, ...]
    wrapping: BoundaryOperators | None

    def wrapped(self, candidate: KernelGraph) -> KernelGraph:
        """Return a candidate for the given program, made from one for the searched program."""
        return fuse_concatenations(self.around(candidate))

    @property
    def whole(self) -> KernelGraph:
        """Return the searched program on the inputs of the given one."""
        return self.around(self.program)

    def around(self, graph: KernelGraph) -> KernelGraph:
        """Return a graph over the searched program's inputs and outputs as one over those of the given program."""
        return graph if self.wrapping is None else self.wrapping.around(self.inputs, graph)


@lru_cache(maxsize=4096)
def preprocess(program: KernelGraph, *, proved: bool = True) -> PreprocessedProgram:
    """Return the program without maxima that zeros can replace, and without views of its inputs and of its results.

    Sound: nothing is accepted for it. It says where to look, and every candidate is proved equal to the program as it
    was given. What is written anew is what the prover has shown to be equal, so that the search is not in vain.

    Args:
        program: The program.
        proved: Whether the prover is asked. Costs of the many parts of a partition are estimated without it.
    """
    equal = _is_proved_equal if proved else _is_expected_equal
    plain = first = program
    if len(program.ops) <= _MOST_OPERATORS:
        simple = _simplify(program)
        plain = first = _without_maxima(program if simple is None or not equal(program, simple) else simple, equal)
        anew = normalize_layout_ops(plain)
        if anew is not None and equal(program, anew):
            plain = anew
    found = _strip_views(plain) or PreprocessedProgram(plain, program.inputs, None)
    return found if _is_searchable(found.program) else _hoist_moves(program, first, equal) or found


def _is_searchable(program: KernelGraph) -> bool:
    """Return whether the program has a product, or no operators that only move elements of a tensor."""
    kinds = {op.kind for op in program.ops if isinstance(op, Op)}
    return OpKind.MATMUL in kinds or not moved_tensors(program)


def _hoist_moves(program: KernelGraph, plain: KernelGraph, equal: _EqualityTest) -> PreprocessedProgram | None:
    """Preprocess a program without products by hoisting its moves to the inputs; return None if some of them remain.

    A program of moves only is a copy. One copy is a predefined operator, and no kernel is searched in its place.

    Args:
        program: The program.
        plain: The same without maxima that do not matter.
        equal: Function that decides whether a rewritten program counts as equal.
    """
    if len(plain.ops) > _MOST_OPERATORS:
        return None
    for anew in dict.fromkeys(hoist_layout_ops(plain, behind=behind) or plain for behind in (False, True)):
        if anew == program or equal(program, anew):
            found = _strip_views(anew, kernels=True)
            if found is not None and not moved_tensors(found.program):
                return found
    return None


@none_on_match_failure
def _simplify(program: KernelGraph) -> KernelGraph | None:
    """Return the program with constants folded, and equal operators merged (common subexpression elimination)."""
    new = KernelGraphBuilder(program.inputs)
    number = apply_rules(new, program.ops, fold_constant)
    if tuple(new.ops) == program.ops:
        raise MatchFailure("expected two equal operators or an operator on a constant, got none")
    return new.finish([number[n] for n in program.outputs])


def _is_proved_equal(program: KernelGraph, anew: KernelGraph) -> bool:
    from mirage_formal.prove.equality.prove import prove  # most programs are sought as they are

    return isinstance(prove(program, anew), Equivalent)


def _is_expected_equal(program: KernelGraph, anew: KernelGraph) -> bool:
    return True


# --- maxima -----------------------------------------------------------------------------------------------------------


def cancelling_maxima(program: KernelGraph) -> frozenset[int]:
    """Return the numbers of the operators that compute nothing but maxima that zeros can replace.

    Nothing is proved: such operators do not count towards the size of the searched program.

    Args:
        program: A program of predefined operators.
    """
    plain = program
    for first in _maxima(program):
        plain = _replace_by_zeros(plain, first) or plain
    live = set(plain.outputs)
    for first, op in reversed(list(enumerate_results(len(plain.inputs), plain.ops))):
        if first in live:
            live |= set(op.operands)
    return frozenset(n for n in range(len(plain.ops)) if len(plain.inputs) + n not in live)


def _without_maxima(program: KernelGraph, equal: _EqualityTest) -> KernelGraph:
    types = kernel_types(program)
    for first, op in _maxima(program).items():
        single = op.attrs.dim is not None and types[op.operands[0]].shape[op.attrs.dim] == 1
        plain = _replace_result(program, first, op.operands[0]) if single else _replace_by_zeros(program, first)
        if plain is not None and equal(program, plain := eliminate_dead_code(plain)):
            return _without_maxima(plain, equal)
    return program


def _maxima(program: KernelGraph) -> dict[int, Op]:
    """Return the operators max x, and max(max x, c) for numbers c, by their results.

    Kernels compute a running maximum for these, but not for a maximum of other tensors.
    """
    makers = {first: op for first, op in enumerate_results(len(program.inputs), program.ops) if isinstance(op, Op)}
    found: dict[int, Op] = {}
    for first, op in makers.items():
        top = [operand in makers and makers[operand].kind is OpKind.MAX for operand in op.operands]
        bounded = op.kind is OpKind.MAXIMUM and op.attrs.value is not None and all(top)
        if op.kind is OpKind.MAX or bounded:
            found[first] = op
    return found


def _replace_result(program: KernelGraph, result: int, operand: int) -> KernelGraph | None:
    """Return the program with an operand in place of a result; None if the result is an output.

    The largest of one element is that element. A candidate with zeros in its place would need no sum of exponentials,
    and without a sum no running maximum is derived for it.
    """
    if result in program.outputs:
        return None
    stands = [operand if n == result else n for n in range(len(kernel_types(program)))]
    return renumber_graph(program, stands)


def _replace_by_zeros(program: KernelGraph, tensor: int) -> KernelGraph | None:
    """Return the program with zeros in place of a result.

    None if the zeros do not disappear by sums and differences.
    """
    types = kernel_types(program)
    stands = list(range(len(types)))  # for each tensor, the one that is read in its place
    zeros = {tensor}
    for first, op in enumerate_results(len(program.inputs), program.ops):
        if zeros.isdisjoint(op.operands):
            continue
        if isinstance(op, Op) and op.kind in _OF_ZERO:
            zeros.add(first)
            continue
        kept = _nonzero_operand(op, zeros) if isinstance(op, Op) else None
        if kept is None or types[kept] != types[first]:
            return None
        stands[first] = stands[kept]
    if zeros.intersection(program.outputs):
        return None
    made = renumber_graph(program, stands)
    return None if faults(made) else made


def _nonzero_operand(op: Op, zeros: set[int]) -> int | None:
    """Return the operand that a sum or difference with zeros is equal to; None if there is none."""
    match op.kind, op.operands:
        case OpKind.ADD | OpKind.SUB, (a, b) if b in zeros and a not in zeros:
            return a
        case OpKind.ADD, (a, b) if a in zeros and b not in zeros:
            return b
        case _:
            return None


# --- views ------------------------------------------------------------------------------------------------------------


def _strip_views(program: KernelGraph, *, kernels: bool = False) -> PreprocessedProgram | None:
    """Return the program between views and pads of its inputs and reshapes of its results; None if there are none.

    Args:
        program: The program.
        kernels: Whether to take the views of graph-defined kernels. One kernel then computes the rest, possibly only by
            copying an input after several moves.
    """
    count, makers = len(program.inputs), dict(enumerate_results(len(program.inputs), program.ops))
    types = kernel_types(program)
    copies = kernels and kernel_count(program) > 1 and makers.keys() <= moved_tensors(program).keys()
    known = storage_locations(_with_output_readers(program) if copies else program, kernels=kernels)
    strides = {n: item.strides for n, item in enumerate(program.inputs)}
    together = pad_expressions(program)
    for first, op in makers.items():
        if known[first].base < count:
            strides[first] = known[first].strides
        elif first in together:  # a kernel reads a pad where it lies; sums of pads have no strides of their own
            pad = isinstance(op, Op) and op.kind is OpKind.PAD
            strides[first] = strides[op.operands[0]] if pad else row_major(types[first].shape)
    front = [n for n in strides if n >= count]
    back = [] if copies else sorted(_trailing_moves(program, kernels=kernels))
    core = [op for first, op in makers.items() if first not in front and first not in back]
    ends = tuple(_tensor_before_moves(n, back, makers) for n in program.outputs)
    ended = not copies and any(n < count or n in front for n in ends)
    if not (front or back) or not (core or copies) or len(set(ends)) < len(ends) or ended:
        return None
    read = {n for op in core for n in op.operands}.union(ends if copies else ())
    reads = [n for n in (*range(count), *front) if n in read]
    inputs = [program.inputs[n] if n < count else Input(f"view{i}", types[n], strides[n]) for i, n in enumerate(reads)]
    wrapping, inner = split_at(program, (front, reads), (ends, back), inputs)
    return None if faults(inner) else PreprocessedProgram(inner, program.inputs, wrapping)


def _tensor_before_moves(tensor: int, back: Sequence[int], makers: Mapping[int, KernelOp]) -> int:
    """Return the tensor in front of trailing moves of elements."""
    while tensor in back:
        tensor = makers[tensor].operands[0]
    return tensor


def _with_output_readers(program: KernelGraph) -> KernelGraph:
    """Return the program with an operator that reads each output, so that outputs can be views as well."""
    types = kernel_types(program)
    count, readers = len(types), tuple(Op(reading_operator(types[n]), (n,)) for n in program.outputs)
    return replace(program, ops=(*program.ops, *readers), outputs=tuple(range(count, count + len(readers))))


def _trailing_moves(program: KernelGraph, *, kernels: bool) -> set[int]:
    """Return outputs that are only reshapes of another result, and the tensors between the two.

    Args:
        program: The program.
        kernels: Whether transposes and rolls count like reshapes.
    """
    makers, found = dict(enumerate_results(len(program.inputs), program.ops)), set[int]()
    for output in program.outputs:
        for tensor, _, move in trailing_moves(program, output):
            if move.kind is not OpKind.RESHAPE and not kernels:
                break
            found.add(tensor)
            found.update(makers[tensor].operands if move.kind is OpKind.CONCAT else ())
    return found


__all__ = ["PreprocessedProgram", "preprocess"]
