"""Renaming of a tensor's indices ("views"), so that the dims of two operands match.

An axis that can index two dims of a tensor has several copies of equal extent and equal split. A tensor means the
same under any assignment of copies to its dims. Its canonical view numbers the copies in the order of its dims. Before
two tensors are combined, the second one is renamed. Where the dims must agree, it gets the copies of the first one's
dims; elsewhere it gets copies that the first one does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mirage_formal.search.guided.algebra.containment import Algebra
from mirage_formal.search.guided.algebra.interner import Form
from mirage_formal.search.guided.algebra.part_masks import Substitution, full_mask
from mirage_formal.search.guided.algebra.part_numbering import SLOTS, Axis, Parts, move_part, part_axis

#: Dims of a tensor, each a list of parts, most significant first.
Dims = tuple[Parts, ...]


class IndexRenaming:
    """Renaming of indices to copies of the same axis.

    Sound: a renaming is one-to-one on the indices of the tensor, and goes between copies that have the same parts.

    Args:
        algebra: The algebra that interns the normal forms.
        peers: For an axis all copies that it may be renamed to, in order of preference.
    """

    def __init__(self, algebra: Algebra, peers: Callable[[Axis], Sequence[Axis]]) -> None:
        self._algebra = algebra
        self._peers = peers

    def canonical(self, form: Form, dims: Dims) -> tuple[Form, Dims]:
        """Return the view whose copies are numbered in the order of the dims.

        Args:
            form: Form of the tensor.
            dims: Its dims.

        Returns:
            Form and dims of the view.

        Raises:
            ValueError: An index that no dim shows has one of the names, or there are too few.
        """
        names: dict[Axis, Axis] = {}
        used: set[Axis] = set()
        for axis in _axes_of_dims(dims):
            name = next((peer for peer in self._peers(axis) if peer not in used), None)
            if name is None:
                raise ValueError
            names[axis] = name
            used.add(name)
        return self._viewed(form, dims, names)

    def joined(self, dims: Dims, form: Form, dims2: Dims) -> tuple[Form, Dims]:
        """Return an elementwise operator's second operand, renamed to the first's indices, and the dims of the result.

        Args:
            dims: Dims of the first operand.
            form: Form of the second operand.
            dims2: Dims of the second operand.

        Returns:
            Form of the view, and dims of the result.

        Raises:
            ValueError: The dims do not fit.
        """
        pairs = [(x, y) for x, y in zip(dims, dims2, strict=True) if x and y]
        form, viewed = self._matched(pairs, _axes_of_dims(dims), form, dims2)
        return form, tuple(x or y for x, y in zip(dims, viewed, strict=True))

    def contracted(self, dims: Dims, form: Form, dims2: Dims) -> tuple[Form, Dims]:
        """Return a matrix product's second operand, renamed to the indices of the first.

        Args:
            dims: Dims of the first operand.
            form: Form of the second operand.
            dims2: Dims of the second operand.

        Returns:
            Form and dims of the view.

        Raises:
            ValueError: The dims do not fit.
        """
        pairs = [(x, y) for x, y in zip(dims[:-2], dims2[:-2], strict=True) if x and y]
        return self._matched([(dims[-1], dims2[-2]), *pairs], _axes_of_dims(dims), form, dims2)

    def _matched(
        self, pairs: Iterable[tuple[Parts, Parts]], avoid: Iterable[Axis], form: Form, dims: Dims
    ) -> tuple[Form, Dims]:
        names: dict[Axis, Axis] = {}
        for wanted, present in pairs:
            if len(wanted) != len(present):
                raise ValueError
            for x, y in zip(wanted, present, strict=True):
                a, b = part_axis(x), part_axis(y)
                if x % SLOTS != y % SLOTS or names.setdefault(b, a) != a or a not in self._peers(b):
                    raise ValueError
        used = set(names.values())
        if len(used) < len(names):
            raise ValueError
        used |= set(avoid)
        for axis in _axes_of_dims(dims):
            if axis in names:
                continue
            name = axis if axis not in used else next((p for p in self._peers(axis) if p not in used), None)
            if name is None:
                raise ValueError
            names[axis] = name
            used.add(name)
        return self._viewed(form, dims, names)

    def _viewed(self, form: Form, dims: Dims, names: dict[Axis, Axis]) -> tuple[Form, Dims]:
        pairs: Substitution = tuple((axis, name) for axis, name in names.items() if axis != name)
        if not pairs:
            return form, dims
        # An index that no dim shows (a grid index of the block) keeps its name, so no other index may take that name.
        free = self._algebra.free[form]
        if any(full_mask(name) & free for _, name in pairs if name not in names):
            raise ValueError
        viewed = tuple(tuple(move_part(p, names[part_axis(p)]) for p in dim) for dim in dims)
        return self._algebra.substitute(form, pairs), viewed


def _axes_of_dims(dims: Dims) -> list[Axis]:
    """Return the axes of some dims, in order."""
    return list(dict.fromkeys(part_axis(part) for dim in dims for part in dim))
