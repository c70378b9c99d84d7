"""Result of an import: programs, the torch tensors of their inputs and outputs, and the operators left to torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from mirage_formal.frontend.origins import Origin
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import DType
from mirage_formal.support.errors import DTypeError, ShapeError
from mirage_formal.torch.imported_values import ImportedGraph, InputLayout


@dataclass(frozen=True, slots=True)
class Binding:
    """Binding of a program's input to a tensor of the torch graph.

    Attributes:
        name: The input's name.
        what: Origin of the tensor: "parameter layers.0.w", "buffer x", "argument 1", "constant", or the torch operator
            that computes it.
        node: The node of the torch graph that has the tensor.
        shape: The extents that the tensor must have.
        strides: The strides that it must have, in elements.
        layout: Elements of the tensor's memory that the input has, from the tensor's first element on.
        dtype: The input's element type.
    """

    name: str
    what: str
    node: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    layout: InputLayout
    dtype: DType

    def read(self, tensor: Any) -> Any:
        """Return the input as a torch tensor, without a copy unless it has other strides than at the import.

        Args:
            tensor: The tensor of the node.

        Returns:
            A tensor of the shape and strides of the program's input.

        Raises:
            ShapeError: It has other extents, or repeats other dims.
            DTypeError: It has another element type.
        """
        layout, where = self.layout, f"{self.what} ({self.name})"
        wanted = f"torch.{self.dtype.value}"
        if str(tensor.dtype) != wanted:
            raise DTypeError(f"expected {wanted}, got {tensor.dtype}", where=where, hint="import for this type")
        if tuple(tensor.shape) != self.shape:
            text = f"expected {list(self.shape)}, got {list(tensor.shape)}"
            raise ShapeError(text, where=where, hint="import for these extents")
        if any(n > 1 and a != b for n, a, b in zip(self.shape, self.strides, tensor.stride(), strict=True)):
            if not all(self.strides):
                text = f"expected strides {list(self.strides)}, got {list(tensor.stride())}"
                raise ShapeError(text, where=where, hint="repeat the same dims as at the import")
            tensor = tensor.new_empty_strided(self.shape, self.strides).copy_(tensor)
        return tensor.as_strided(layout.shape, layout.strides, tensor.storage_offset() + layout.offset)


@dataclass(frozen=True, slots=True)
class Output:
    """Binding of a program's result to a tensor of the torch graph.

    Attributes:
        node: The node of the torch graph that the result stands for.
        number: Number of the program's output.
        shape: The extents in torch.
        strides: Its strides in the memory of the program's output, which is row-major.
    """

    node: str
    number: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def present(self, results: Sequence[Any]) -> Any:
        """Return the node's tensor as a view of the program's output.

        Args:
            results: The program's outputs as torch tensors, row-major.
        """
        found = results[self.number]
        return found.as_strided(self.shape, self.strides, found.storage_offset())


@dataclass(frozen=True, slots=True)
class UnsupportedNode:
    """An operator that stays with torch.

    Attributes:
        node: Its node in the torch graph.
        operator: Its name, as in "aten.cumsum.default".
        reason: Reason why it is not imported.
        where: The line of the user's module; None if torch has not kept it.
        through: Lines of other files between that one and the operator, the innermost last.
    """

    node: str
    operator: str
    reason: str
    where: Origin | None
    through: Origin | None = None

    def __str__(self) -> str:
        place = "" if self.where is None else f"{self.where}"
        if self.through is not None and self.through != self.where:
            place += f" (in {self.through})"
        return f"{place or self.node}: {self.operator}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ImportRemark:
    """Remark on an element type that differs from torch's, or on a torch call that has no effect.

    Attributes:
        node: Its node in the torch graph.
        text: Text of the remark.
        where: The line of the user's module.
    """

    node: str
    text: str
    where: Origin | None

    def __str__(self) -> str:
        return f"{self.where or self.node}: {self.text}"


@dataclass(frozen=True)
class Region:
    """A subgraph of the torch graph that one program computes.

    Attributes:
        graph: The program.
        nodes: The nodes of the torch graph in the subgraph, in order.
        inputs: Bindings of the program's inputs, in order.
        outputs: Bindings of the program's results.
        views: Nodes that are used outside and are views of the program's inputs, or of another result: torch makes them
            itself.
    """

    graph: ImportedGraph = field(compare=False)
    nodes: tuple[str, ...]
    inputs: tuple[Binding, ...]
    outputs: tuple[Output, ...]
    views: tuple[str, ...] = ()

    @cached_property
    def program(self) -> KernelGraph:
        """The program as a value."""
        return self.graph.freeze()

    @cached_property
    def numbered_program(self) -> KernelGraph:
        """The program with numbers as names of its inputs: layers of a model differ in these names only."""
        inputs = tuple(replace(item, name=f"input{number}") for number, item in enumerate(self.program.inputs))
        return replace(self.program, inputs=inputs)

    @cached_property
    def digest(self) -> str:
        """Return the sha256 of the program's canonical form; it does not depend on the names of the inputs."""
        return digest(self.numbered_program)

    @cached_property
    def stored(self) -> frozenset[int]:
        """Tensors of the program that torch stores in their element types; it may keep others in float32."""
        return self.graph.stored_results()

    @property
    def passed_inputs(self) -> tuple[Binding, ...]:
        """Return the bindings of the inputs that callers pass: all but band masks."""
        pairs = zip(self.inputs, self.program.inputs, strict=True)
        return tuple(item for item, own in pairs if own.band is None)

    @property
    def bindings(self) -> dict[str, str]:
        """Return the description of each input of the program, by the input's name."""
        return {item.name: item.what for item in self.inputs}

    def read(self, tensors: Mapping[str, Any]) -> list[Any]:
        """Return the program's inputs as torch tensors.

        Args:
            tensors: The tensors of torch by the names of their nodes.

        Returns:
            A tensor of torch for each input, in order.
        """
        return [item.read(tensors[item.node]) for item in self.inputs]


@dataclass(frozen=True)
class Imported:
    """A module, function or torch graph as programs.

    Attributes:
        module: The torch graph, without operators that write in place.
        regions: The subgraphs that are programs; all of it if ``graph`` is not None.
        left: The operators that stay with torch.
        ahead: Those of them that depend on no argument: torch computes them once, when parameters are bound.
        views: Nodes in no region that compute nothing: views and casts that torch makes itself.
        notes: Remarks on element types that differ from torch's.
        arguments: Description of each placeholder of the torch graph, as in ``Binding.what``.
        given: Tensor of each placeholder that is state or a constant; no entry for an argument.
        results: The result nodes of the torch graph, in order; None for one that is no tensor.
        writes: Targets of the first results that are written instead of returned, as in "buffer x".
    """

    module: Any
    regions: tuple[Region, ...]
    left: tuple[UnsupportedNode, ...]
    ahead: tuple[UnsupportedNode, ...]
    views: tuple[str, ...]
    notes: tuple[ImportRemark, ...]
    arguments: Mapping[str, str]
    given: Mapping[str, Any]
    results: tuple[str | None, ...]
    writes: tuple[str, ...] = ()

    @property
    def graph(self) -> ImportedGraph | None:
        """The program, if one computes all that depends on an argument."""
        return self.regions[0].graph if len(self.regions) == 1 and not self.left else None

    @property
    def bindings(self) -> dict[str, str]:
        """Return the torch description of each program input, by the input's name, for all regions."""
        return {name: what for region in self.regions for name, what in region.bindings.items()}

    def tensors(self, names: Iterable[str], arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Compute tensors of the torch graph by torch.

        Args:
            names: Names of nodes.
            arguments: Tensors of the argument placeholders, by the placeholders' names.

        Returns:
            A tensor for each name.
        """
        from mirage_formal.torch.capture import evaluate_nodes

        return evaluate_nodes(self.module, list(names), {**self.given, **arguments})

    def report(self) -> str:
        """Return a text that lists what was imported and what was not, with lines of the user's files."""
        found = []
        operators = sum(len(region.nodes) for region in self.regions)
        whole = "all that depends on an argument" if self.graph is not None else f"{len(self.regions)} regions"
        found.append(f"imported: {whole}, {operators} operators of torch")
        for number, region in enumerate(self.regions):
            ops = len(region.program.ops)
            found.append(f"  region {number}: {len(region.nodes)} operators of torch, {ops} of the program")
            found += [f"    {name}: {what}" for name, what in region.bindings.items()]
        for title, items in (
            ("left to torch", self.left),
            ("computed by torch once, because no argument matters", self.ahead),
            ("element types", self.notes),
        ):
            if items:
                found.append(f"{title}:")
                for line, times in Counter(map(str, items)).items():
                    found.append(f"  {line}" + (f" ({times} times)" if times > 1 else ""))
        views = [*self.views, *(name for region in self.regions for name in region.views)]
        if views:
            found.append("views and casts that torch makes: " + ", ".join(views))
        if self.writes:
            found.append("written back by torch: " + ", ".join(self.writes))
        return "\n".join(found)
