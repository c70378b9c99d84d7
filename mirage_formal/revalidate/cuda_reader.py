"""Reading of CUDA C++ back into the Program that it states, by a grammar of the language that knows no printer.

The text is parsed by tree-sitter's grammar of CUDA. Each function and macro of the device layer
(gpu/include/mirage_formal/device.cuh) stands for one statement or value of a Program (``Reader.table`` and
``Reader.function``); whatever else the text has is refused. Comments are not read.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NoReturn

from mirage_formal.codegen.program import program as ir
from mirage_formal.graph.types import DType
from mirage_formal.support.errors import FormatError

#: A node of tree-sitter, whose package has no types that mypy accepts without it.
Node = Any
#: Builds the statement of a call from its node, template arguments and arguments.
_Builder = Callable[[Node, Sequence[Node], Sequence[Node]], ir.Stmt]

_TYPES: Final = {
    "mf::half": DType.FLOAT16,
    "mf::bfloat": DType.BFLOAT16,
    "float": DType.FLOAT32,
    "mf::mask": DType.BOOL,
}
#: Macros whose first argument is a type: the grammar reads it as that of a template.
_TYPED_MACROS: Final = re.compile(r"\bMF_(INPUT|OUTPUT|AWAITED|HANDED|SHARED)\(([\w:]+)(\) |, )")
#: The headers of the device layer: of all kernels, products of float32, products of warpgroups, producers, and joined
#: launches.
_INCLUDES: Final = ("device.cuh", "float32.cuh", "wgmma.cuh", "pipeline.cuh", "joined.cuh")
_DECLARED: Final = ("MF_SHARED", "MF_PIPELINE")
_COORDINATES: Final = {"tid": "threadIdx.x", "bx": "blockIdx.x", "by": "blockIdx.y", "bz": "blockIdx.z"}
#: Threads of a warpgroup, as the producer's is, and of a warp.
_WARPGROUP, _WARP = 128, 32
_ARITHMETIC: Final = {"+": ir.BinaryFn.ADD, "-": ir.BinaryFn.SUB, "*": ir.BinaryFn.MUL}
#: Bits of the infinity of float32.
_INFINITY: Final = 0x7F800000
_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,9}")
_FLOAT: Final = re.compile(r"-?([0-9]+\.[0-9]*|[0-9]+(\.[0-9]*)?e[+-]?[0-9]+)f")


@dataclass(frozen=True, slots=True)
class KernelText:
    """Declarations and statements that the text of a kernel consists of.

    Attributes:
        name: Its name.
        threads: Threads of a block, with those of a producer.
        alone: Whether a multiprocessor has one block at a time.
        params: Name, element type, and macro of each parameter, which says how it is accessed.
        shared_bytes: Bytes of shared memory; 0 where it has none.
        shared: Name, element type, elements and offset of each buffer.
        extents: Extents of the coordinates that the text names.
        headers: The headers that it includes.
        body: The statements, in the form of ``_as_read``.
        producer: Those of the producer.
        consumers: Threads that run the body beside a producer; 0 if there is none.
        pipelines: Name, slots and bytes of an item of each pipeline.
        maps: The tensor maps, in the order of the parameters.
    """

    name: str
    threads: int
    alone: bool
    params: tuple[tuple[str, DType, str], ...]
    shared_bytes: int
    shared: tuple[tuple[str, DType, int, int], ...]
    extents: Mapping[str, int]
    headers: tuple[str, ...]
    body: tuple[ir.Stmt, ...]
    producer: tuple[ir.Stmt, ...] = ()
    consumers: int = 0
    pipelines: tuple[tuple[str, int, int], ...] = ()
    maps: tuple[ir.TensorMap, ...] = ()


def has_cuda_grammar() -> bool:
    """Return whether tree-sitter and its grammar of CUDA are installed."""
    return all(find_spec(name) is not None for name in ("tree_sitter", "tree_sitter_cuda"))


def text_of_program(program: ir.Program, extents: Mapping[str, int]) -> KernelText:
    """Return the declarations and statements that the text of a Program has; ``extents`` are those of a text.

    Raises:
        FormatError: A coordinate has another extent.
    """
    own = dict(zip(_COORDINATES, (program.threads, *program.grid), strict=True))
    for name, extent in extents.items():
        if own[name] != extent:
            raise FormatError(f"expected {own[name]} as the extent of {name}, got {extent}")
    macros = {
        param.name: "OUTPUT" if param.written else "AWAITED" if program.dependent and not param.given else "INPUT"
        for param in program.params
    }
    body, producer = tuple(map(_as_read, program.body)), tuple(map(_as_read, program.producer))
    return KernelText(
        program.name,
        program.launch_threads,
        program.alone,
        tuple((param.name, param.dtype, macros[param.name]) for param in program.params),
        program.shared_bytes,
        tuple((buffer.name, buffer.dtype, buffer.elements, buffer.offset) for buffer in program.shared),
        extents,
        _headers(body, producer),
        body,
        producer,
        program.threads if producer else 0,
        tuple((one.name, one.slots, one.bytes) for one in program.pipelines),
        program.maps,
    )


def read_cuda(text: str) -> KernelText:
    """Return the declarations and statements of the text of one kernel.

    Sound: every token of the text but comments is part of what is returned: a node whose children are not all read is
    refused, as is a name that is not of the table.

    Raises:
        FormatError: The text is not that of one kernel; the message names the line.
    """
    return Reader().kernel(parse_cuda(text))


def parse_cuda(text: str) -> Node:
    """Return the root of a text's syntax tree.

    Raises:
        FormatError: The grammar does not accept the text.
    """
    if not text.isascii() or "\\" in text or "??" in text:  # no line is continued, no character stands for another
        raise FormatError("expected ASCII text without backslashes")
    marked = _TYPED_MACROS.sub(lambda m: f"MF_{m[1]}<{m[2]}>" + (" " if m[3] == ") " else "("), text)
    root = _parser().parse(marked.encode()).root_node
    if root.has_error:
        raise FormatError("expected CUDA C++, got a text that the grammar does not accept")
    return root


@cache
def _parser() -> Any:
    sitter, cuda = import_module("tree_sitter"), import_module("tree_sitter_cuda")
    return sitter.Parser(sitter.Language(cuda.language()))


def _as_read(item: Any) -> Any:
    """Return a statement or value in the one form that texts have.

    Constants are float32, a negated constant is one, and what holds of a condition is not part of it.
    """
    if isinstance(item, tuple):
        return tuple(map(_as_read, item))
    if not is_dataclass(item) or isinstance(item, type):
        return item
    made = replace(item, **{f.name: _as_read(getattr(item, f.name)) for f in fields(item)})
    match made:
        case ir.Real(value):
            return ir.Real(_float32(value))
        case ir.Apply(ir.KernelFn.NEG, ir.Real(value)):
            return ir.Real(-value)
        case ir.If(condition, body, _):
            return ir.If(condition, body)
        case ir.Registers(name, count, words, initial):
            return ir.Registers(name, count, words, None if initial is None or words else _float32(initial))
        case _:
            return made


def _float32(value: float) -> float:
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _headers(body: Sequence[ir.Stmt], producer: Sequence[ir.Stmt]) -> tuple[str, ...]:
    """Return the headers that statements need."""
    found = list(ir.all_statements(body))
    floats = any(isinstance(one, ir.Mma) and one.dtype is DType.FLOAT32 for one in found)
    warpgroups = any(isinstance(one, ir.WarpgroupMma) for one in found)
    every = (True, floats, warpgroups, bool(producer))
    return tuple(one for one, needed in zip(_INCLUDES, every, strict=False) if needed)


def _text(node: Node) -> str:
    return str(node.text.decode())


def refuse_node(node: Node, expected: str) -> NoReturn:
    """Raise a FormatError that names a node's line, what was expected there, and its text."""
    line, found = node.start_point[0] + 1, " ".join(_text(node).split())[:120]
    raise FormatError(f"line {line}: expected {expected}, got {found!r}")


def node_parts(node: Node, kind: str, *shape: str | None) -> list[Node]:
    """Return the children of a node that have no text of their own in ``shape``; comments are left out.

    Args:
        node: The node.
        kind: Its kind.
        shape: For each child its text, or None for one that is returned.
    """
    children = [child for child in node.children if child.type != "comment"]
    if node.type != kind or len(children) != len(shape):
        refuse_node(node, f"{kind.replace('_', ' ')} of {len(shape)} parts")
    for child, text in zip(children, shape, strict=True):
        if text is not None and _text(child) != text:
            refuse_node(child, repr(text))
    return [child for child, text in zip(children, shape, strict=True) if text is None]


def items_between(node: Node, kind: str, open: str, close: str) -> list[Node]:
    """Return the items of a list with commas between them."""
    children = [child for child in node.children if child.type != "comment"]
    texts = [_text(child) for child in children]
    if node.type != kind or texts[:1] != [open] or texts[-1:] != [close] or any(t != "," for t in texts[2:-1:2]):
        refuse_node(node, f"a list in {open} and {close}")
    if len(children) > 2 and len(children) % 2 == 0:
        refuse_node(node, "items between commas")
    return children[1:-1:2]


def _item(node: Node, kind: str, open: str, close: str) -> Node:
    """Return the only item between ``open`` and ``close``; a list of none or several is refused."""
    found = items_between(node, kind, open, close)
    return found[0] if len(found) == 1 else refuse_node(node, f"one item in {open} and {close}")


class Reader:
    """Reader of one kernel; names that are declared, by what they are."""

    #: Coordinates by name, each with its source.
    coordinates: Mapping[str, str] = _COORDINATES

    def __init__(self) -> None:
        self.params: dict[str, tuple[DType, str]] = {}
        self.shared: dict[str, tuple[DType, int, int]] = {}
        self.registers: dict[str, bool] = {}
        self.extents: dict[str, int] = {}
        self.variables: set[str] = set()
        self.shared_bytes = 0
        self.pipelines: dict[str, tuple[int, int, int]] = {}
        #: Names of tensor maps, and the copies of tiles that use them, in the order of their first uses.
        self.maps: list[str] = []
        self.mapped: list[ir.TensorMap] = []
        #: Threads of the body beside a producer, 0 without one; and whether the statements at hand are the producer's.
        self.consumers, self.producing = 0, False
        self.builders = self.table()

    # --- the kernel --------------------------------------------------------------------------------------------------

    def kernel(self, root: Node) -> KernelText:
        headers, nodes = self.includes(root)
        if len(nodes) != 1:
            refuse_node(root, "one kernel")
        name, (threads, alone), given, body = self.head(nodes[0])
        every = items_between(given, "parameter_list", "(", ")")
        tensors = [one for one in every if _text(one).split()[:1] != ["MF_TENSOR_MAP"]]
        params = tuple(map(self.parameter, tensors))
        if every[: len(tensors)] != tensors:
            refuse_node(given, "tensor maps behind all tensors")
        self.maps = [self.map(one, number) for number, one in enumerate(every[len(tensors) :])]
        producer, statements = self.roles(self.declarations(self.statements_of(body)), threads)
        if len(self.mapped) != len(self.maps):
            refuse_node(given, f"{len(self.mapped)} tensor maps")
        return KernelText(
            name,
            threads,
            alone,
            params,
            self.shared_bytes,
            tuple((one, *self.shared[one]) for one in self.shared),
            self.extents,
            headers,
            self.body(statements),
            producer,
            self.consumers,
            tuple((one, slots, size) for one, (slots, size, _) in self.pipelines.items()),
            tuple(self.mapped),
        )

    def roles(self, statements: Sequence[Node], threads: int) -> tuple[tuple[ir.Stmt, ...], Sequence[Node]]:
        """Return the producer of a kernel that has pipelines, and the statements of its body behind that."""
        if not self.pipelines:
            return (), statements
        if len(statements) < 3:
            raise FormatError("expected a producer behind the pipelines, got less")
        start, branch, end, *body = statements
        function, template, given = self.call(node_parts(start, "expression_statement", None, ";")[0])
        if function != "mf::start_pipelines" or template or [_text(one) for one in given] != [*self.pipelines]:
            refuse_node(start, "the start of all pipelines")
        condition, inside = node_parts(branch, "if_statement", "if", None, None)
        (asked,) = node_parts(condition, "condition_clause", "(", None, ")")
        function, template, given = self.call(asked)
        if function != "mf::is_producer" or given:
            refuse_node(asked, "the producer")
        self.consumers = self.only_number(asked, template)
        function, template, given = self.call(node_parts(end, "expression_statement", None, ";")[0])
        if function != "MF_CONSUMERS" or template or [_text(one) for one in given] != [str(self.consumers)]:
            refuse_node(end, f"{self.consumers} consumers")
        if threads != self.consumers + _WARPGROUP or self.extents.keys() & {"tid"}:
            refuse_node(branch, "a producer of one more warpgroup, which has no tid")
        if any(warps != self.consumers // _WARP for _, _, warps in self.pipelines.values()):
            refuse_node(start, f"pipelines of {self.consumers // _WARP} warps")
        self.producing = True
        producer = self.body(self.statements_of(inside))
        self.producing = False
        if body and body[0].type == "declaration":
            self.coordinate(body.pop(0))
        return producer, body

    def map(self, node: Node, number: int) -> str:
        kind, name = node_parts(node, "parameter_declaration", None, None)
        if _text(kind) != "MF_TENSOR_MAP" or _text(name) != f"map{number}":
            refuse_node(node, f"the tensor map map{number}")
        return self.declare(name)

    def includes(self, root: Node) -> tuple[tuple[str, ...], list[Node]]:
        """Return the headers that a text includes, and what stands behind them."""
        nodes = [child for child in root.children if child.type != "comment"]
        includes = [child for child in nodes if child.type == "preproc_include"]
        paths = [_text(node_parts(child, "preproc_include", "#include", None)[0]) for child in includes]
        headers = tuple(path.removeprefix('"mirage_formal/').removesuffix('"') for path in paths)
        known = {*_INCLUDES} >= {*headers} and paths == [f'"mirage_formal/{one}"' for one in headers]
        if not known or nodes[: len(includes)] != includes:
            refuse_node(root, "the headers of the device layer and one kernel")
        return headers, nodes[len(includes) :]

    def head(self, node: Node) -> tuple[str, tuple[int, bool], Node, Node]:
        """Return a kernel's name, its threads and whether its blocks are alone, its parameters, and its body."""
        (definition,) = node_parts(node, "linkage_specification", "extern", '"C"', None)
        bounds, head, body = node_parts(definition, "function_definition", "__global__", "void", None, None, None)
        limits = [self.number(child) for child in bounds.children if child.type == "number_literal"]
        if bounds.type != "launch_bounds" or _strip(bounds) != f"__launch_bounds__({','.join(map(str, limits))})":
            refuse_node(bounds, "__launch_bounds__ of numbers")
        if limits[1:] not in ([], [1]):
            refuse_node(bounds, "at most one block")
        name, given = node_parts(head, "function_declarator", None, None)
        return self.name(name), (limits[0], limits[1:] == [1]), given, body

    def parameter(self, node: Node, more: str = "MF_INPUT") -> tuple[str, DType, str]:
        kind, name = node_parts(node, "parameter_declaration", None, None)
        macro, arguments = node_parts(kind, "template_type", None, None)
        element = _item(arguments, "template_argument_list", "<", ">")
        use = _text(macro).removeprefix("MF_")
        if _text(macro) not in ("MF_INPUT", "MF_OUTPUT", "MF_AWAITED", more):
            refuse_node(macro, "MF_INPUT, MF_OUTPUT or MF_AWAITED")
        found = self.declare(name), self.dtype(element), use
        self.params[found[0]] = found[1:]
        return found

    def declarations(self, statements: Sequence[Node]) -> Sequence[Node]:
        """Read shared buffers and coordinates, which stand first; return the statements behind them."""
        for number, node in enumerate(statements):
            call = node.children[0] if node.type == "expression_statement" else None
            if node.type == "declaration":
                self.coordinate(node)
            elif call is None or call.type != "call_expression" or not _text(call).startswith(_DECLARED):
                return statements[number:]
            else:
                name, template, given = self.call(call)
                if name == "MF_SHARED_MEMORY" and len(given) == 1 and not template and not self.shared_bytes:
                    self.shared_bytes = self.number(given[0])
                elif name == "MF_SHARED" and len(given) == 3 and len(template) == 1 and self.shared_bytes:
                    one = self.declare(given[0])
                    self.shared[one] = self.dtype(template[0]), self.number(given[1]), self.number(given[2])
                elif name == "MF_PIPELINE" and len(given) == 4 and not template:
                    one = self.declare(given[0])
                    self.pipelines[one] = self.number(given[1]), self.number(given[2]), self.number(given[3])
                else:
                    refuse_node(node, "a declaration of shared memory, then of buffers in it and of pipelines")
        return ()

    def coordinate(self, node: Node) -> None:
        (declared,) = node_parts(node, "declaration", "const", "int", None, ";")
        name, value = node_parts(declared, "init_declarator", None, "=", None)
        function, template, given = self.call(value)
        own = self.declare(name)
        if (
            function != "mf::below"
            or len(template) != 1
            or [_strip(one) for one in given] != [self.coordinates.get(own)]
        ):
            refuse_node(node, "a coordinate of its extent")
        self.extents[own] = self.number(template[0])
        self.variables.add(own)

    def name(self, node: Node) -> str:
        if node.type != "identifier":
            refuse_node(node, "a name")
        return _text(node)

    def declare(self, node: Node) -> str:
        name = self.name(node)
        if name in self.params or name in self.shared or name in self.extents:
            refuse_node(node, "a name that no tensor and no coordinate has")
        if name in self.pipelines or name in self.maps:
            refuse_node(node, "a name that no pipeline and no tensor map has")
        return name

    def dtype(self, node: Node) -> DType:
        if (text := _strip(node)) not in _TYPES:
            refuse_node(node, "an element type")
        return _TYPES[text]

    def number(self, node: Node) -> int:
        if node.type != "number_literal" or not _INTEGER.fullmatch(_text(node)) or int(_text(node)) >= 2**31:
            refuse_node(node, "a decimal integer")
        return int(_text(node))

    # --- statements --------------------------------------------------------------------------------------------------

    def statements_of(self, node: Node) -> list[Node]:
        children = [child for child in node.children if child.type != "comment"]
        if node.type != "compound_statement" or [_text(one) for one in (children[0], children[-1])] != ["{", "}"]:
            refuse_node(node, "statements in braces")
        return children[1:-1]

    def body(self, nodes: Sequence[Node]) -> tuple[ir.Stmt, ...]:
        found: list[ir.Stmt] = []
        pragma: Node | None = None
        for node in nodes:
            if node.type == "preproc_call":
                if pragma is not None or _strip(node) not in ("#pragmaunroll", "#pragmaunroll1"):
                    refuse_node(node, "#pragma unroll before a loop")
                pragma = node
                continue
            if pragma is not None and node.type != "for_statement":
                refuse_node(node, "a loop behind #pragma unroll")
            unroll = pragma is not None and _strip(pragma) == "#pragmaunroll"
            pragma = None
            if node.type == "for_statement":
                found.append(self.loop(node, unroll))
            elif node.type == "if_statement":
                condition, body = node_parts(node, "if_statement", "if", None, None)
                (inner,) = node_parts(condition, "condition_clause", "(", None, ")")
                found.append(ir.If(self.integer(inner), self.body(self.statements_of(body))))
            else:
                (inner,) = node_parts(node, "expression_statement", None, ";")
                self.simple(inner, found)
        if pragma is not None:
            refuse_node(pragma, "a loop behind it")
        return tuple(found)

    def loop(self, node: Node, unroll: bool) -> ir.For:
        start, test, step, body = node_parts(node, "for_statement", "for", "(", None, None, ";", None, ")", None)
        (declared,) = node_parts(start, "declaration", "int", None, ";")
        name, _ = node_parts(declared, "init_declarator", None, "=", None)
        var = self.declare(name)
        match = re.fullmatch(rf"{var}<([0-9]+)", _strip(test))
        if _strip(start) != f"int{var}=0;" or match is None or _strip(step) != f"++{var}" or var in self.variables:
            refuse_node(node, "a loop that counts from 0")
        self.variables.add(var)
        inner = self.body(self.statements_of(body))
        self.variables.remove(var)
        return ir.For(var, self.number(test.children[-1]), inner, unroll)

    def simple(self, node: Node, before: list[ir.Stmt]) -> None:
        """Read an assignment or a call; add its statement to those before it."""
        if node.type == "assignment_expression":
            target, value = node_parts(node, "assignment_expression", None, "=", None)
            array, index = self.element(target)
            function, template, given = self.call(value) if value.type == "call_expression" else ("", (), ())
            if self.registers[array]:
                if function != "mf::pack" or len(template) != 1 or len(given) != 2:
                    refuse_node(value, "a pack of two halves")
                low, high = map(self.value, given)
                before.append(ir.Pack(array, index, low, high, self.dtype(template[0])))
            else:
                before.append(ir.SetReg(array, index, self.value(value)))
            return
        function, template, given = self.call(node)
        if function in ("MF_FLOATS", "MF_WORDS") and len(given) == 2 and not template:
            name = self.declare(given[0])
            self.registers[name] = function == "MF_WORDS"
            before.append(ir.Registers(name, self.number(given[1]), function == "MF_WORDS"))
        elif function == "mf::fill" and len(given) == 2 and not template:
            match before[-1:], self.value(given[1]):
                case [ir.Registers(name, count, False, None)], ir.Real(value) if name == _text(given[0]):
                    before[-1] = ir.Registers(name, count, False, value)
                case _:
                    refuse_node(node, "a constant for the registers that were just declared")
        else:
            build = self.builders.get((function, len(given)))
            if build is None:
                refuse_node(node, "a function of the device layer")
            before.append(build(node, template, given))

    def table(self) -> Mapping[tuple[str, int], _Builder]:
        """Return the statements of calls, by function and number of arguments."""
        integer, floats, words = self.integer, self.floats, self.words
        plain: dict[tuple[str, int], Callable[[], ir.Stmt]] = {
            ("mf::commit", 0): ir.Commit,
            ("mf::grid_wait", 0): ir.GridWait,
            ("mf::launch_dependents", 0): ir.LaunchDependents,
        }

        def alone(make: Callable[[], ir.Stmt]) -> _Builder:
            return lambda node, t, a: make() if not t else refuse_node(node, "no template argument")

        def matrix(transposed: bool) -> _Builder:
            return lambda node, t, a: ir.LoadMatrix(
                words(a[0]), integer(a[1]), self.buffer(a[2]), integer(a[3]), self.only_number(node, t), transposed
            )

        def shuffle(fn: ir.BinaryFn) -> _Builder:
            return lambda node, t, a: (
                ir.ShuffleReduce(floats(a[0]), integer(a[1]), fn, self.number(a[2]))
                if not t
                else refuse_node(node, "no template argument")
            )

        def barrier(node: Node, template: Sequence[Node], given: Sequence[Node]) -> ir.Stmt:
            name = _text(node)
            numbers = [self.number(one) for one in template]
            if ("consumer" in name) != bool(self.consumers) or numbers != [self.consumers][: bool(self.consumers)]:
                refuse_node(node, "a barrier of all threads that run the body")
            return ir.Barrier(fenced=name.startswith("mf::fenced"))

        def item(make: type[ir.Acquire | ir.Await | ir.Release]) -> _Builder:
            return lambda node, t, a: (
                make(self.pipeline(a[0], producer=make is ir.Acquire), integer(a[1]))
                if not t
                else refuse_node(node, "no template argument")
            )

        return {
            **{key: alone(make) for key, make in plain.items()},
            ("mf::barrier", 0): barrier,
            ("mf::fenced_barrier", 0): barrier,
            ("mf::consumer_barrier", 0): barrier,
            ("mf::fenced_consumer_barrier", 0): barrier,
            ("mf::acquire", 2): item(ir.Acquire),
            ("mf::await", 2): item(ir.Await),
            ("mf::release", 2): item(ir.Release),
            ("mf::copy_tile", 7): self.copy_tile,
            ("mf::wait_groups", 0): lambda node, t, a: ir.WaitGroups(self.only_number(node, t)),
            ("mf::store", 3): lambda node, t, a: self.store(node, t, a[0], a[1], (a[2],)),
            ("mf::store_vector", 3): lambda node, t, a: self.store(
                node, t, a[0], a[1], items_between(a[2], "initializer_list", "{", "}")
            ),
            ("mf::load_vector", 4): self.load_vector,
            ("mf::copy_async", 4): self.copy,
            ("mf::copy_async", 5): self.copy,
            ("mf::load_matrix", 4): matrix(False),
            ("mf::load_matrix_transposed", 4): matrix(True),
            ("mf::mma", 6): self.mma,
            ("mf::warpgroup_mma", 6): self.warpgroup_mma,
            ("mf::warpgroup_wait", 2): lambda node, t, a: ir.WarpgroupWait(
                floats(a[0]), integer(a[1]), self.only_number(node, t)
            ),
            ("mf::shuffle_add", 3): shuffle(ir.BinaryFn.ADD),
            ("mf::shuffle_max", 3): shuffle(ir.BinaryFn.MAX),
        }

    def only_number(self, node: Node, template: Sequence[Node]) -> int:
        if len(template) != 1:
            refuse_node(node, "one template argument")
        return self.number(template[0])

    def store(self, node: Node, template: Sequence[Node], to: Node, at: Node, values: Sequence[Node]) -> ir.Stmt:
        if template or (len(values) == 1) != (_text(node).startswith("mf::store(")):
            refuse_node(node, "mf::store of one value, or mf::store_vector of several")
        found = tuple(map(self.value, values))
        name = self.tensor(to)
        make = ir.SharedWrite if name in self.shared else ir.GlobalWrite
        return make(name, self.integer(at), found)

    def load_vector(self, node: Node, template: Sequence[Node], given: Sequence[Node]) -> ir.Stmt:
        name, count = self.tensor(given[2]), self.only_number(node, template)
        make = ir.SharedVector if name in self.shared else ir.GlobalVector
        return make(self.floats(given[0]), self.integer(given[1]), name, self.integer(given[3]), count)

    def copy(self, node: Node, template: Sequence[Node], given: Sequence[Node]) -> ir.Stmt:
        size = self.number(template[0]) if template else 16
        valid = self.integer(given[4]) if len(given) == 5 else ir.Int(1)
        if len(template) > 1 or size not in (4, 8, 16) or self.tensor(given[2]) not in self.params:
            refuse_node(node, "a copy of 4, 8 or 16 bytes from device memory")
        at, source = self.integer(given[1]), self.integer(given[3])
        return ir.CopyAsync(self.buffer(given[0]), at, _text(given[2]), source, valid, size)

    def copy_tile(self, node: Node, template: Sequence[Node], given: Sequence[Node]) -> ir.Stmt:
        if len(template) != 2:
            refuse_node(node, "rows and stride of a tile")
        rows, stride = map(self.number, template)
        pipeline, item, buffer, at, name, param, source = given
        if _text(param) not in self.params:
            refuse_node(param, "a parameter")
        view = ir.TensorMap(_text(param), rows, stride)
        if view not in self.mapped:
            self.mapped.append(view)
        if _text(name) != f"map{self.mapped.index(view)}" or _text(name) not in self.maps:
            refuse_node(name, "the tensor map of this parameter, rows and stride")
        own = self.pipeline(pipeline, producer=True), self.integer(item), self.buffer(buffer), self.integer(at)
        return ir.TileCopy(*own, view.param, self.integer(source), rows, stride)

    def mma(self, node: Node, template: Sequence[Node], given: Sequence[Node]) -> ir.Stmt:
        if len(template) != 1:
            refuse_node(node, "one element type")
        dtype, (d, d_at, a, a_at, b, b_at) = self.dtype(template[0]), given
        operand = self.floats if dtype is DType.FLOAT32 else self.words
        at = [self.integer(one) for one in (d_at, a_at, b_at)]
        return ir.Mma(self.floats(d), at[0], operand(a), at[1], operand(b), at[2], dtype)

    def warpgroup_mma(self, node: Node, template: Sequence[Node], given: Sequence[Node]) -> ir.Stmt:
        if len(template) != 8:
            refuse_node(node, "two extents, the layouts of two operands, and how accumulators are written")
        columns, depth, a_panel, a_across, b_panel, b_across, accumulate, deferred = map(self.number, template)
        if max(a_across, b_across, accumulate, deferred) > 1:
            refuse_node(node, "0 or 1 for an operand that lies across, and for accumulators")
        d, d_at, a, a_at, b, b_at = given
        at = [self.integer(one) for one in (d_at, a_at, b_at)]
        names = self.floats(d), self.buffer(a) if a_panel else self.words(a), self.buffer(b)
        dtype, layouts = self.shared[names[2]][0], (a_panel, a_across == 1, b_panel, b_across == 1)
        ways = accumulate == 1, deferred == 1
        operands = (names[0], at[0], names[1], at[1], names[2], at[2])
        return ir.WarpgroupMma(*operands, columns, depth, dtype, *layouts, *ways)

    # --- names of what is accessed -----------------------------------------------------------------------------------

    def tensor(self, node: Node) -> str:
        if (name := self.name(node)) not in self.shared and name not in self.params:
            refuse_node(node, "a tensor")
        return name

    def pipeline(self, node: Node, *, producer: bool) -> str:
        if (name := self.name(node)) not in self.pipelines or self.producing != producer:
            refuse_node(node, "a pipeline, which the producer fills and other threads consume")
        return name

    def buffer(self, node: Node) -> str:
        if (name := self.name(node)) not in self.shared:
            refuse_node(node, "a shared buffer")
        return name

    def floats(self, node: Node) -> str:
        if self.registers.get(name := self.name(node), True):
            refuse_node(node, "registers of floats")
        return name

    def words(self, node: Node) -> str:
        if not self.registers.get(name := self.name(node), False):
            refuse_node(node, "registers of words")
        return name

    def element(self, node: Node) -> tuple[str, ir.IntExpr]:
        """Return the register array and the index of a subscript."""
        array, indices = node_parts(node, "subscript_expression", None, None)
        index = _item(indices, "subscript_argument_list", "[", "]")
        if (name := self.name(array)) not in self.registers:
            refuse_node(array, "registers")
        return name, self.integer(index)

    def call(self, node: Node) -> tuple[str, Sequence[Node], Sequence[Node]]:
        """Return the name of a called function, its template arguments, and its arguments."""
        function, given = node_parts(node, "call_expression", None, None)
        prefix, template = "", ()
        if function.type == "qualified_identifier":
            scope, function = node_parts(function, "qualified_identifier", None, "::", None)
            prefix = f"{_text(scope)}::"
        if function.type == "template_function":
            function, arguments = node_parts(function, "template_function", None, None)
            template = tuple(items_between(arguments, "template_argument_list", "<", ">"))
        return prefix + self.name(function), template, items_between(given, "argument_list", "(", ")")

    # --- expressions -------------------------------------------------------------------------------------------------

    def integer(self, node: Node) -> ir.IntExpr:
        match node.type:
            case "number_literal":
                return ir.Int(self.number(node))
            case "identifier":
                if _text(node) not in self.variables:
                    refuse_node(node, "a variable")
                return ir.Var(_text(node))
            case "parenthesized_expression":
                return self.integer(node_parts(node, node.type, "(", None, ")")[0])
            case "unary_expression":
                return ir.Int(-self.number(node_parts(node, node.type, "-", None)[0]))
            case "binary_expression":
                a, op, b = node_parts(node, node.type, None, None, None)
                if _text(op) not in set(ir.IntOp):
                    refuse_node(op, "an operator of integers")
                return ir.IntBin(ir.IntOp(_text(op)), self.integer(a), self.integer(b))
            case _:
                refuse_node(node, "an expression of integers")

    def value(self, node: Node) -> ir.Value:
        match node.type:
            case "number_literal":
                return ir.Real(_nearest_float32(node))
            case "subscript_expression":
                array, index = self.element(node)
                return ir.Reg(array, index) if not self.registers[array] else refuse_node(node, "a float")
            case "parenthesized_expression":
                return self.value(node_parts(node, node.type, "(", None, ")")[0])
            case "unary_expression":
                a = self.value(node_parts(node, node.type, "-", None)[0])
                return ir.Real(-a.value) if isinstance(a, ir.Real) else ir.Apply(ir.KernelFn.NEG, a)
            case "binary_expression":
                left, op, right = node_parts(node, node.type, None, None, None)
                if _text(op) not in _ARITHMETIC:
                    refuse_node(op, "an operator of floats")
                return ir.Combine(_ARITHMETIC[_text(op)], self.value(left), self.value(right))
            case "conditional_expression":
                condition, yes, no = node_parts(node, node.type, None, "?", None, ":", None)
                return ir.Select(self.integer(condition), self.value(yes), self.value(no))
            case "call_expression":
                return self.function(node)
            case _:
                refuse_node(node, "a value")

    def function(self, node: Node) -> ir.Value:
        function, template, given = self.call(node)
        name = function.removeprefix("mf::")
        if template or name == function:
            refuse_node(node, "a function of values")
        match name, len(given):
            case "infinity", 0:
                return ir.Real(float("inf"))
            case "load", 2:
                tensor, index = self.tensor(given[0]), self.integer(given[1])
                return ir.SharedRead(tensor, index) if tensor in self.shared else ir.GlobalRead(tensor, index)
            case "select", 3:
                return ir.Where(*map(self.value, given))
            case _, 1 if name in ir.UNARY_FUNCTIONS:
                return ir.Apply(ir.UNARY_FUNCTIONS[name], self.value(given[0]))
            case _, 2 if name in set(ir.BinaryFn):
                return ir.Combine(ir.BinaryFn(name), *map(self.value, given))
            case _:
                refuse_node(node, "a function of values")


def _strip(node: Node) -> str:
    """Return a node's text without white space."""
    return "".join(_text(node).split())


def _nearest_float32(node: Node) -> float:
    """Return the float32 that is nearest to a literal; a literal between two of them is refused."""
    text = _text(node)
    if not _FLOAT.fullmatch(text):
        refuse_node(node, "a literal of float32")
    exact, found = Fraction(text[:-1]), _float32(float(text[:-1]))
    if abs(found) == float("inf"):
        refuse_node(node, "a literal within float32")
    size = struct.unpack("I", struct.pack("f", abs(found)))[0]
    beside = [
        Fraction(2**128) if one == _INFINITY else Fraction(_of_bits(one)) for one in (size - 1, size + 1) if one >= 0
    ]
    if any(abs(one - abs(exact)) <= abs(Fraction(abs(found)) - abs(exact)) for one in beside):
        refuse_node(node, "a literal that is nearest to one float32")
    return found


def _of_bits(bits: int) -> float:
    return float(struct.unpack("f", struct.pack("I", bits))[0])


__all__ = ["KernelText", "has_cuda_grammar", "read_cuda", "text_of_program"]
