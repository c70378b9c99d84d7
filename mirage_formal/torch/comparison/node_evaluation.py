"""Reference evaluation of torch nodes by torch: in their own types, in float64, and in float64 with random roundings.

**Float64.** Only the module's own roundings are applied: casts to another type. Booleans and integers are taken from
the evaluation in the module's own types, so that a comparison that depends on rounding has one result. Two more
evaluations are made as samples of rounding: one with the comparisons of float64, and one in which each operator reads
stored (rounded) values. In the latter, values beyond float32 are poisoned as below.

**Random roundings.** Each tensor that is read is perturbed by one part in 2^23, which models float32's loss in sums and
differences inside of an operator. Each computed tensor is perturbed by the unit roundoff of its own type. So is a
product before a bias is added, a norm before its bias by one part in 2^23, and the weights of attention before they are
multiplied by values. Operands of squares are perturbed by one part in 2^23 as well, because this alone models the
rounding of a mean that cancels. Values beyond float32's range become infinite, as in programs: such an element changes
later sums, also at elements that torch has lost because its narrower type overflowed there. The spread of the results
bounds the effect of rounding.

**Poisoned values.** Sums and squares that float32 cannot hold in every order are poisoned: NaN where float64 has a
number, and 0 where it has NaN, because their result depends on the device's order of addition. So is a sum of a bias
and a product that its type cannot hold. So is a sum of an infinity and a value beyond float32: it is NaN if that
overflows first, and infinite if a device fuses the product with the sum. The maximum and minimum of zeros of both signs
depend on the kernel's order, so negative zeros are ordered below and above others in turn.

One evaluation with random roundings poisons nothing: there only results overflow. A device may add in an order in which
no sum before a square overflows; then the square does, and a quotient by it is 0, where float64 has the root of a
negative number. And a poisoned query is NaN, where one that overflows has the score minus infinity.

**Attention.** In float64 it is its definition by products and a softmax, because torch's kernels differ for a row of
NaN. With random roundings it selects keys, so that scores of masked keys have no influence: torch adds minus infinity
to them, or multiplies them by 0. In every other evaluation the largest score of each row is lowered by its rounding.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import torch
from torch.fx import Node

from mirage_formal.torch.comparison.contract import ROUNDOFF
from mirage_formal.torch.deadline import NO_DEADLINE, Deadline
from mirage_formal.torch.op_table import rules

#: Operators that only change the element type.
_CASTS: Final = frozenset(
    f"aten.{name}"
    for name in (
        "to.dtype",
        "to.device",
        "to.dtype_layout",
        "to.other",
        "_to_copy.default",
        "type_as.default",
    )
)
#: Functions that programs write with other functions near 1, as log(1 + x): they are off by float32's unit roundoff at
#: 1.
_NEAR_ONE: Final = frozenset(
    f"aten.{name}"
    for name in (
        "log1p.default",
        "expm1.default",
        "softplus.default",
        "log_sigmoid.default",
        "mish.default",
        "elu.default",
        "celu.default",
        "selu.default",
        "gelu.default",
        "log_softmax.int",
        "logsumexp.default",
        "binary_cross_entropy.default",
        "binary_cross_entropy_with_logits.default",
    )
)
_SINGLE: Final = 2.0**-23
#: Most elements of a perturbed input; larger ones are weights, and perturbing their products' other operand suffices.
_MOST_MOVED: Final = 1 << 18
#: Most elements of a tensor whose random roundings are kept, and the number of tensors: 16 MiB.
_REPEATED: Final = 1 << 17
_FACTORS: Final = 32
#: Half of the largest float32: sums of magnitudes up to it are finite in every order, with rounding.
_MOST: Final = 2.0**127
#: Smallest magnitude whose square is a normal float32.
_LEAST: Final = 2.0**-62
#: Operators that add a term to a product, with the name of that argument.
_ADDED: Final = {
    "aten.linear.default": "bias",
    "aten.addmm.default": "self",
    "aten.baddbmm.default": "self",
    "aten.conv1d.default": "bias",
    "aten.conv2d.default": "bias",
    "aten.conv3d.default": "bias",
}
_ATTENTION: Final = "aten.scaled_dot_product_attention.default"
#: Operators whose result for magnitudes bounds all partial sums.
_SUMS: Final = frozenset(_ADDED) | {
    f"aten.{name}"
    for name in (
        "matmul.default",
        "mm.default",
        "bmm.default",
        "mv.default",
        "dot.default",
        "sum.default",
        "sum.dim_IntList",
        "mean.default",
        "mean.dim",
        "avg_pool1d.default",
        "avg_pool2d.default",
        "avg_pool3d.default",
        "l1_loss.default",
        "add.Tensor",
        "sub.Tensor",
        "addcmul.default",
        "addcdiv.default",
        _ATTENTION.removeprefix("aten."),
    )
}
#: Products of two tensors, each element a sum of as many terms as the first one has elements along its last dim.
_PRODUCTS: Final = frozenset(
    f"aten.{name}" for name in ("linear.default", "matmul.default", "mm.default", "bmm.default", "mv.default")
)
#: Sums of two terms, which overflow in one way only unless a term has a factor.
_PLAIN: Final = frozenset({"aten.add.Tensor", "aten.sub.Tensor"})
#: Operators that square their operands.
_SQUARES: Final = frozenset(
    f"aten.{name}"
    for name in (
        "var.correction",
        "var.dim",
        "std.correction",
        "std.dim",
        "linalg_vector_norm.default",
        "norm.ScalarOpt_dim",
        "rms_norm.default",
        "layer_norm.default",
        "group_norm.default",
        "instance_norm.default",
        "batch_norm.default",
        "_native_batch_norm_legit_functional.default",
        "_native_batch_norm_legit_no_training.default",
        "pairwise_distance.default",
        "mse_loss.default",
        "huber_loss.default",
        "smooth_l1_loss.default",
    )
)
#: Operators in which an intermediate value may overflow.
_OVERFLOWING: Final = _SUMS | _SQUARES
#: Operators that select the largest or the smallest number.
_EXTREMES: Final = frozenset(
    f"aten.{name}"
    for name in (
        "maximum.default",
        "minimum.default",
        "clamp.default",
        "clamp.Tensor",
        "clamp_min.default",
        "clamp_max.default",
        "clamp_min.Tensor",
        "clamp_max.Tensor",
        "hardtanh.default",
        "relu.default",
        "relu6.default",
        "amax.default",
        "amin.default",
        "max.default",
        "min.default",
        "max.dim",
        "min.dim",
    )
)
#: Value that replaces a distinguished zero: no other float64 number here is so small.
_TINY: Final = 1e-300

#: Function of a node, its positional and its keyword arguments.
_Call = Callable[[Node, tuple[Any, ...], dict[str, Any]], Any]
#: Seed of random roundings; None for none.
_Seed = tuple[int, int] | None


class NodeEvaluator:
    """Evaluator of nodes of a torch graph by torch.

    Args:
        nodes: The nodes, in topological order.
        outputs: Names of the output nodes.
        deadline: Deadline, which is looked at before each node.
    """

    def __init__(self, nodes: Sequence[Node], outputs: Collection[str], deadline: Deadline = NO_DEADLINE) -> None:
        self._nodes = nodes
        self._deadline = deadline
        self._outputs = frozenset(outputs)
        self._last = {read.name: node.name for node in nodes for read in node.all_input_nodes}
        self._place = {node.name: i for i, node in enumerate(nodes)}
        self._kept = _casts_widened_again(nodes)
        self._free = frozenset(name for name, row in rules().items() if row.free)
        self._narrows = any(node.name not in self._kept and _narrows(node) for node in nodes)
        self._discrete: dict[str, Any] = {}
        self._numbers: dict[str, Any] = {}
        self._wide: dict[str, tuple[Any, Any]] = {}
        self._largest: dict[str, float] = {}

    def forget(self) -> None:
        """Forget the tensors that were given to ``own`` and ``exact``."""
        self._discrete, self._numbers, self._wide, self._largest = {}, {}, {}, {}

    @property
    def decides(self) -> bool:
        """Return whether ``own`` has computed booleans or integers."""
        return bool(self._discrete)

    @property
    def rounds(self) -> bool:
        """Return whether ``exact`` depends on ``decided``: there are comparisons, or casts that may round nothing.

        Sound: without these ``exact`` makes the same calls with the same arguments for both values.
        """
        return self.decides or self._narrows

    def own(self, known: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs in the module's own types.

        Args:
            known: The tensors that the nodes read, by the names of their nodes.
        """
        self._discrete, self._wide, self._largest = {}, {}, {}

        def call(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            found = node.target(*args, **kwargs)
            if not any(_floating(x) for x in _tensors(found)):
                self._discrete[node.name] = found
            return found

        return self._run(known, call)

    def exact(
        self,
        known: Mapping[str, Any],
        seed: int | None = None,
        *,
        decided: bool = True,
        stored: bool = False,
        poisoned: bool = True,
    ) -> dict[str, Any]:
        """Return the outputs in float64; call ``own``, and this without a seed, with the same tensors first.

        Args:
            known: The tensors that the nodes read, by the names of their nodes, in the module's own types.
            seed: Seed of random roundings; None for none.
            decided: Whether comparisons are those of the module's own types. If not, casts whose results are never
                widened again round nothing either.
            stored: Whether operators round the tensors that they read to their types, and values beyond float32 are
                poisoned.
            poisoned: Whether sums and squares are poisoned that float32 cannot hold in every order.
        """
        wide: dict[str, Any] = {}
        for number, (name, tensor) in enumerate(known.items()):
            if _floating(tensor):
                wide[name] = self._in_float64(name, tensor)
                if seed is not None and tensor.numel() <= _MOST_MOVED:
                    wide[name] = _perturb(wide[name], _SINGLE, 0.0, (seed, number))

        def call(node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if node.name in self._discrete:
                if decided:
                    return self._discrete[node.name]
                args = _round_arguments(node, args) if stored else args
            target, own = str(node.target), node.meta.get("val")
            args, kwargs, found = _evaluate_wide(node, args, kwargs)
            narrows = _narrows(node)
            if narrows and ((seed is None and decided) or node.name in self._kept):
                return found.to(own.dtype).double()
            if seed is None and not stored:
                if decided and target in _OVERFLOWING and _floating(found):
                    self._numbers[node.name] = ~found.isnan()
                return found
            if node.target is operator.getitem or (target in self._free and not narrows):
                return found
            place = None if seed is None else (seed, len(known) + 2 * self._place[node.name])
            if poisoned or target not in _OVERFLOWING:
                found = self._perturb_inside(node, args, kwargs, found, place)
            elif target == _ATTENTION:
                found = _selected_attention(_by_name(node, args, kwargs), lowered=False)[0]
            if place is None:
                return found
            floor = _SINGLE if target in _NEAR_ONE else 0.0
            return _map_results(found, own, lambda x, y: _round_randomly(x, y.dtype, floor, (place[0], place[1] + 1)))

        return self._run({**known, **wide}, call)

    def _perturb_inside(
        self, node: Node, args: Sequence[Any], kwargs: Mapping[str, Any], found: Any, place: _Seed
    ) -> Any:
        """Return a result perturbed by the roundings inside its operator, and poisoned; see ``_perturb_inside``."""
        target, numbers = str(node.target), self._numbers.get(node.name)
        found = _perturb_inside(node, args, kwargs, found, numbers, place)
        if target not in _SUMS or target == _ATTENTION:
            return found
        given = _by_name(node, args, kwargs)
        return found if self._is_bounded(target, given) else _poison_sums(node, given, found, numbers)

    def _is_bounded(self, target: str, given: Mapping[str, Any]) -> bool:
        """Return whether no partial sum of a product can overflow float32, by the largest factors.

        Sound: half of the bound of ``_poison_sums`` leaves room for the rounding of its sums in float64.
        """
        if target not in _PRODUCTS:
            return False
        tensors = [x for x in given.values() if _floating(x)]
        if len(tensors) < 2:
            return False
        sizes = [self._largest_magnitude(x) for x in tensors]
        return bool(tensors[0].shape[-1] * sizes[0] * sizes[1] + sum(sizes[2:]) <= _MOST / 2)

    def _largest_magnitude(self, x: Any) -> float:
        """Return the largest magnitude in a tensor; not finite if an element is not."""
        name = next((name for name, (_, wide) in self._wide.items() if wide is x), None)
        if name not in self._largest:
            low, high = torch.aminmax(x) if x.numel() else (0.0, 0.0)
            found = max(-float(low), float(high))
            if name is None:
                return found
            self._largest[name] = found
        return self._largest[name]

    def _in_float64(self, name: str, tensor: Any) -> Any:
        """Return a tensor in float64; all evaluations of one set of tensors share it."""
        if name not in self._wide or self._wide[name][0] is not tensor:
            self._wide[name] = tensor, tensor.double()
        return self._wide[name][1]

    def _run(self, known: Mapping[str, Any], call: _Call) -> dict[str, Any]:
        values = dict(known)
        found: dict[str, Any] = {name: values[name] for name in self._outputs if name in values}
        for node in self._nodes:
            self._deadline.check()
            args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda n: values[n.name])
            result = call(node, args, kwargs)
            if node.name in self._outputs:
                found[node.name] = result
            if node.name in self._last:
                values[node.name] = result
            for read in node.all_input_nodes:
                if self._last[read.name] == node.name:
                    values.pop(read.name, None)
        return found


def nodes_between(nodes: Sequence[Node], outputs: Collection[str], read: Collection[str]) -> list[Node]:
    """Return the nodes between known tensors and outputs, in order.

    Args:
        nodes: All nodes of a graph, in order.
        outputs: Names of the output nodes.
        read: Names of the nodes that are known.
    """
    named = {node.name: node for node in nodes}
    stack, seen = [name for name in outputs if name not in read], set[str]()
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            stack += [n.name for n in named[name].all_input_nodes if n.name not in read]
    return [node for node in nodes if node.name in seen]


def _tensors(found: Any) -> list[Any]:
    return [x for x in torch.utils._pytree.tree_leaves(found) if isinstance(x, torch.Tensor)]


def _floating(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and bool(x.is_floating_point())


def _evaluate_wide(
    node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Return the arguments of a node in float64, defaults filled in, and its result for them."""
    if str(node.target) in _CASTS:
        return args, kwargs, args[0].double()
    if node.target is operator.getitem:
        return args, kwargs, args[0][args[1]]
    kwargs = _widen_arguments(_fill_type_defaults(node, kwargs))
    # Filled-in arguments come after all given ones.
    args = tuple(x for x, name in zip(_widen_arguments(args), _names(node), strict=False) if name not in kwargs)
    if str(node.target) == _ATTENTION:
        return args, kwargs, _by_definition(args, kwargs)
    return args, kwargs, node.target(*args, **kwargs)


def _widen_arguments(given: Any) -> Any:
    """Return arguments with every floating-point type and tensor in float64."""

    def wide(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return torch.float64 if x.is_floating_point else x
        return x.double() if _floating(x) else x

    return torch.utils._pytree.tree_map(wide, given)


def _fill_type_defaults(node: Node, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a node, with defaults filled in that depend on the element type."""
    target, given = str(node.target), _by_name(node, node.args, kwargs)
    found = dict(kwargs)
    if target == "aten.rms_norm.default" and given.get("eps") is None:
        found["eps"] = torch.finfo(torch.float32).eps
    if target == "aten.nan_to_num.default":
        largest = torch.finfo(node.meta["val"].dtype).max
        missing = {"posinf": largest, "neginf": -largest}
        found.update({name: value for name, value in missing.items() if given.get(name) is None})
    return found


def _names(node: Node) -> list[str]:
    return [item.name for item in node.target._schema.arguments]


def _by_name(node: Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(zip(_names(node), args, strict=False)), **kwargs}


def _perturb_inside(
    node: Node, args: Sequence[Any], kwargs: Mapping[str, Any], found: Any, numbers: Any, seed: _Seed
) -> Any:
    """Return a result perturbed by the roundings inside its operator, and poisoned where float32 overflows inside.

    Args:
        node: Operator of the result.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        found: The result.
        numbers: Mask of elements that are not NaN without roundings.
        seed: Seed of the roundings; None for none.
    """
    target = str(node.target)
    if target in _EXTREMES:
        return _either_zero(node, args, kwargs, found, above=seed is not None and seed[0] % 2 == 0)
    if target not in _OVERFLOWING:
        return found
    given = _by_name(node, args, kwargs)
    if target in _SQUARES:
        parts = ("weight", "bias")
        clipped = {name: _bound_weights(x) if name in parts else _perturb_squares(x, seed) for name, x in given.items()}
        found, bias = node.target(**clipped), clipped.get("bias")
        if bias is None or not isinstance(found, torch.Tensor):
            return found
        product = node.target(**{**clipped, "bias": torch.zeros_like(bias)})
        found = found + (_perturb(product, _SINGLE, 0.0, seed) - product).nan_to_num(nan=0.0)
        return _poison(found, product.isfinite() & (product.abs() > _MOST), numbers)
    unit = ROUNDOFF.get(node.meta["val"].dtype, 0.0)
    if target in _ADDED:
        name = _ADDED[target]
        rest = given.get(name)
        if rest is not None:
            product = node.target(**{**given, name: torch.zeros_like(rest)})
            found = found + (_perturb(product, unit, 0.0, seed) - product).nan_to_num(nan=0.0)
            most = torch.finfo(node.meta["val"].dtype).max * (1 - 4 * unit)
            found = _poison(found, product.isfinite() & (product.abs() > most), numbers)
    elif target == _ATTENTION:
        chosen, sizes, far = _selected_attention(given, lowered=seed is not None and seed[0] % 2 == 1)
        chosen = chosen + (_perturb(sizes, unit, 0.0, seed) - sizes).nan_to_num(nan=0.0)
        return _poison(chosen, far, numbers)
    return found


def _poison_sums(node: Node, given: Mapping[str, Any], found: Any, numbers: Any) -> Any:
    """Return the result of a sum, poisoned where the sum of its terms' magnitudes overflows float32.

    Args:
        node: Operator of the result.
        given: Its arguments by name.
        found: The result.
        numbers: Mask of elements that are not NaN without roundings.
    """
    target = str(node.target)
    if target in _PLAIN and given.get("alpha", 1) == 1:
        return found
    sizes = {name: _size(x, name) for name, x in given.items()}
    if target == "aten.sub.Tensor":
        sizes["alpha"] = -sizes["alpha"]
    return _poison(found, node.target(**sizes).nan_to_num(nan=0.0, posinf=0.0) > _MOST, numbers)


def _round_arguments(node: Node, args: Sequence[Any]) -> tuple[Any, ...]:
    """Return the arguments of a node, each tensor rounded to its own type."""
    pairs = zip(args, node.args, strict=True)
    return tuple(x.to(read.meta["val"].dtype).double() if _floating(x) else x for x, read in pairs)


def _either_zero(node: Node, args: Sequence[Any], kwargs: Mapping[str, Any], found: Any, *, above: bool) -> Any:
    """Return a maximum or minimum in which negative zeros are ordered above, or below, other zeros."""

    def apart(x: Any) -> Any:
        return torch.where((x == 0) & x.signbit(), _TINY if above else -_TINY, x) if _floating(x) else x

    def signed(x: Any, chosen: Any) -> Any:
        return torch.where(x == 0, torch.where(chosen == 0, 0.0, -0.0), x) if _floating(x) else x

    args, kwargs = torch.utils._pytree.tree_map(apart, (tuple(args), dict(kwargs)))
    return torch.utils._pytree.tree_map(signed, found, node.target(*args, **kwargs))


def _by_definition(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return attention by torch's definition, as a composition of products and a softmax."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    mask = given.get("attn_mask")
    if mask is not None and mask.dtype is torch.bool:  # torch converts a mask before it calls this, which adds it
        given["attn_mask"] = torch.where(mask, 0.0, -torch.inf).to(given["query"].dtype)
    return torch.ops.aten._scaled_dot_product_attention_math.default(**given)[0]


def _selected_attention(given: Mapping[str, Any], *, lowered: bool) -> tuple[Any, Any, Any]:
    """Return attention over selected keys only, the same for magnitudes, and a mask of values beyond float32.

    The third tensor marks rows whose scores, and results whose weighted values, float32 cannot hold. If ``lowered``,
    the largest score of each row is lowered by the loss of float32 in its sum, so that another key of about that score
    may take its place.
    """
    q, k, v = (given[name] for name in ("query", "key", "value"))
    mask = given.get("attn_mask")
    if given.get("enable_gqa"):
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scale = given.get("scale")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores, sizes = q @ k.mT * scale, _size(q) @ _size(k).mT * max(1.0, abs(scale))
    keep = torch.ones_like(scores, dtype=torch.bool)
    if given.get("is_causal"):
        keep = keep.tril()
    read = keep if mask is None or mask.dtype is not torch.bool else keep & mask  # -inf is added to all of these
    if mask is not None:
        keep = read & (mask if mask.dtype is torch.bool else mask != -torch.inf)
        scores = scores if mask.dtype is torch.bool else scores + mask
    scores = torch.where(keep, scores, -torch.inf)
    if lowered:
        scores = torch.where(scores == scores.amax(-1, keepdim=True), scores - _SINGLE * sizes, scores)
    weights = torch.where((scores == -torch.inf).all(-1, keepdim=True), 0.0, torch.softmax(scores, -1))
    lost = (weights != 0).double() @ (~v.isfinite()).double() != 0
    values = torch.where(v.isfinite(), v, 0.0)
    found = torch.where(lost, torch.nan, weights @ values)
    far = (read & (sizes > _MOST)).any(-1, keepdim=True)
    # Kernels divide by the sum of weights last.
    far = far | ((weights != 0).double() @ (values.abs() > _MOST / v.shape[-2]).double() != 0)
    return found, weights @ values.abs(), far


def _poison(found: Any, bad: Any, numbers: Any) -> Any:
    """Return a result with poisoned elements: NaN where the result without roundings is a number, else 0."""
    return torch.where(bad, torch.where(numbers, torch.nan, 0.0), found)


def _size(x: Any, name: str = "") -> Any:
    """Return the magnitudes of an argument; a factor of a sum counts as at least 1, because it may be applied last.

    Infinities count as 0, because other terms of their sum must be finite, or the sum may be NaN.
    """
    if _floating(x):
        return torch.nan_to_num_(x.abs(), nan=torch.nan, posinf=0.0)
    return max(1, abs(x)) if name in ("alpha", "beta", "value") and isinstance(x, int | float) else x


def _perturb_squares(x: Any, seed: _Seed) -> Any:
    """Perturb a tensor whose squares are summed, as the rounding of a subtracted mean would.

    An element becomes NaN if the sum of squares may overflow float32, and 0 if its own square underflows.
    """
    if not _floating(x) or not x.numel():
        return x
    small = torch.where(x.abs() < _LEAST, 0.0, x)
    small = _perturb(small, _SINGLE, 0.0, seed and (~seed[0], ~seed[1]))
    return torch.where((x.abs() <= (_MOST / x.numel()) ** 0.5) | ~x.isfinite(), small, torch.nan)


def _bound_weights(x: Any) -> Any:
    """Return the weight or bias of a norm with 1 for infinities, and NaN where float32 may not hold its products.

    The result of a norm with an infinite weight depends on its formula.
    """
    return torch.where(x.isinf(), 1.0, torch.where(x.abs() > _MOST / 256, torch.nan, x)) if _floating(x) else x


def _casts_widened_again(nodes: Sequence[Node]) -> frozenset[str]:
    """Return the names of casts to a narrower type whose results are widened again, directly or through views.

    The roundings of other casts may be skipped, as torch.compile does.
    """
    free = {name for name, row in rules().items() if row.free}
    inside, found = set(nodes), set[str]()
    wide: dict[Node, bool] = {}
    for node in reversed(nodes):
        own = node.meta.get("val")
        if not _floating(own):
            continue
        users = [user for user in node.users if user in inside]
        wide[node] = any(
            _has_wider_result(user, own) or (_is_view(user, free) and wide.get(user, False)) for user in users
        )
        if wide[node] and _is_narrowing_cast(node, own):
            found.add(node.name)
    return frozenset(found)


def _is_view(node: Node, free: Collection[str]) -> bool:
    return node.target is operator.getitem or str(node.target) in free


def _has_wider_result(node: Node, own: Any) -> bool:
    """Return whether a node's result has a wider type than its operand."""
    results = [x.dtype for x in _tensors(node.meta.get("val")) if _floating(x)]
    return any(ROUNDOFF.get(dtype, 0.0) < ROUNDOFF.get(own.dtype, 0.0) for dtype in results)


def _narrows(node: Node) -> bool:
    """Return whether a node is a cast to a tensor of a narrower type; see ``_is_narrowing_cast``."""
    own = node.meta.get("val")
    return isinstance(own, torch.Tensor) and _is_narrowing_cast(node, own)


def _is_narrowing_cast(node: Node, own: Any) -> bool:
    """Return whether a node is a cast to a type that cannot represent all numbers of its operand's type."""
    if str(node.target) not in _CASTS or own.dtype not in ROUNDOFF or own.dtype is torch.float32:
        return False
    value = node.args[0].meta.get("val")
    return _floating(value) and value.dtype is not own.dtype


def _map_results(found: Any, own: Any, change: Callable[[Any, Any], Any]) -> Any:
    """Apply a change to a result, or to each of several results, where it is a floating-point tensor."""
    if isinstance(found, tuple | list):
        return type(found)(_map_results(x, y, change) for x, y in zip(found, own, strict=True))
    return change(found, own) if _floating(found) else found


def _round_randomly(tensor: Any, dtype: Any, floor: float, seed: tuple[int, int]) -> Any:
    """Return a tensor with random rounding errors of a type: its unit roundoff, or half of its smallest number.

    Values beyond float32's range become infinite.
    """
    if dtype not in ROUNDOFF:
        return tensor
    limits = torch.finfo(dtype)
    tensor = torch.where(tensor.abs() > torch.finfo(torch.float32).max, tensor * torch.inf, tensor)
    found = _perturb(tensor, ROUNDOFF[dtype], floor, seed)
    small = (tensor.abs() < limits.smallest_normal) & (tensor != 0)
    if not bool(small.any()):
        return found
    half = torch.minimum(0.9 * tensor.abs(), torch.full_like(tensor, limits.smallest_normal * ROUNDOFF[dtype]))
    return torch.where(small, found + half * _signs(tensor, (seed[0], ~seed[1])), found)


def _perturb(tensor: Any, share: float, floor: float, seed: _Seed) -> Any:
    """Return a tensor with each element perturbed by a relative share and an absolute floor, up or down at random.

    Seeds 2n - 1 and 2n have opposite signs of the floor, so that a value next to a bound crosses it in one of them.
    """
    if seed is None:
        return tensor
    found = tensor * _factors(tensor, share, seed)
    side = floor if seed[0] % 2 else -floor
    return found + side * _signs(tensor, (~((seed[0] + 1) // 2), seed[1])) if floor else found


def _factors(tensor: Any, share: float, seed: tuple[int, int]) -> Any:
    """Return 1 plus or minus a share at random, for each element."""
    if tensor.numel() <= _REPEATED:
        return _small_factors(tuple(tensor.shape), share, seed, tensor.device)
    return 1 + share * _signs(tensor, seed)


@lru_cache(maxsize=_FACTORS)
def _small_factors(shape: tuple[int, ...], share: float, seed: tuple[int, int], device: Any) -> Any:
    """Return ``_factors`` of a small tensor: every set of tensors is perturbed with the same seeds."""
    return 1 + share * _random_signs(shape, seed).to(device)


def _signs(tensor: Any, seed: tuple[int, int]) -> Any:
    """Return a random sign, 1 or -1, for each element."""
    return _random_signs(tuple(tensor.shape), seed).to(tensor.device)


def _random_signs(shape: tuple[int, ...], seed: tuple[int, int]) -> Any:
    generator = torch.Generator().manual_seed((seed[0] * 1_000_003 + seed[1] * 7919) % (1 << 32))  # it reads 32 bits
    return torch.randint(0, 2, shape, generator=generator, dtype=torch.int8) * 2 - 1


__all__ = ["NodeEvaluator", "nodes_between"]
