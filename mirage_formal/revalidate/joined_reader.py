"""Reading of a joined launch back from its CUDA C++: the functions of two Programs' blocks, and the kernel around them.

As in ``cuda_reader``, whatever else the text has is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirage_formal.codegen.joined_launches.block_groups import JoinedProgram
from mirage_formal.codegen.program import program as ir
from mirage_formal.graph.types import DType
from mirage_formal.revalidate.cuda_reader import (
    KernelText,
    Node,
    Reader,
    items_between,
    node_parts,
    parse_cuda,
    refuse_node,
    text_of_program,
)

_AXES: Final = ("x", "y", "z")
_BLOCK: Final = tuple(f"mf_{axis}" for axis in _AXES)
_BLOCK_COORDINATES: Final = {"tid": "threadIdx.x", **{f"b{axis}": f"mf_{axis}" for axis in _AXES}}
_OWN_MACRO: Final = re.compile(r"^MF_DEVICE void ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class JoinedText:
    """Declarations and calls that the text of a joined launch consists of.

    Attributes:
        name: Name of the kernel.
        threads, alone: Its launch bounds.
        params: Name, element type and macro of each parameter, without the counters.
        functions: The two functions, which have the form of kernels.
        first_call, then_call: Their tensors where they are called.
        group: The group of a block, over the coordinates.
        extents: Extents of the coordinates that the kernel names.
        blocks, rounds: Tickets of a counter, and blocks of the second kernel in a group.
        then_block: Its coordinates.
        headers: The headers that the text includes.
    """

    name: str
    threads: int
    alone: bool
    params: tuple[tuple[str, DType, str], ...]
    functions: tuple[KernelText, KernelText]
    first_call: tuple[str, ...]
    then_call: tuple[str, ...]
    group: ir.IntExpr
    extents: Mapping[str, int]
    blocks: int
    rounds: int
    then_block: tuple[ir.IntExpr, ...]
    headers: tuple[str, ...]


def text_of_joined(joined: JoinedProgram, stated: JoinedText) -> JoinedText:
    """Return what the text of a joined launch has; extents of coordinates are those of a text.

    Raises:
        FormatError: A coordinate has another extent.
    """
    first, then, groups = joined.first, joined.then, joined.groups
    names, handed = dict(groups.handed), {source for _, source in groups.handed}
    own = [text_of_program(one, text.extents) for one, text in zip((first, then), stated.functions, strict=True)]
    awaited = {param.name for param in then.params if not param.written and (first.dependent or param.name in names)}
    then_params = tuple((n, d, "AWAITED" if n in awaited else macro) for n, d, macro in own[1].params)
    second = replace(own[1], params=then_params)
    functions = [replace(one, name=f"{one.name}_block", alone=False) for one in (own[0], second)]
    rest = [(f"then_{n}", d, macro) for n, d, macro in then_params if n not in names]
    grid = dict(zip(("bx", "by", "bz"), first.grid, strict=True))
    return JoinedText(
        first.name,
        first.threads,
        first.alone,
        (*((n, d, "HANDED" if n in handed else macro) for n, d, macro in own[0].params), *rest),
        (replace(functions[0], headers=()), replace(functions[1], headers=())),
        tuple(param.name for param in first.params),
        tuple(names.get(param.name, f"then_{param.name}") for param in then.params),
        groups.group,
        {name: grid[name] for name in stated.extents if name in grid},
        groups.blocks,
        groups.rounds,
        groups.then_block,
        tuple(dict.fromkeys((*own[0].headers, *own[1].headers, "joined.cuh"))),
    )


def read_joined(text: str) -> JoinedText:
    """Return what the text of a joined launch consists of.

    Sound: as ``read_cuda``: every token of the text but comments is part of what is returned, or is compared with the
    only one that may stand there.

    Raises:
        FormatError: The text is not that of a joined launch; the message names the line.
    """
    root = parse_cuda(_OWN_MACRO.sub("static void ", text))
    reader = _LaunchReader()
    headers, nodes = reader.includes(root)
    if len(nodes) != 3:
        refuse_node(root, "two functions and a kernel")
    functions = [_FunctionReader().block_function(node, text) for node in nodes[:2]]
    return reader.launch(nodes[2], (functions[0], functions[1]), headers)


class _FunctionReader(Reader):
    """Reader of a function that runs one block of a Program."""

    coordinates = _BLOCK_COORDINATES

    def block_function(self, node: Node, text: str) -> KernelText:
        line = text.splitlines()[node.start_point[0]]
        if not line.startswith("MF_DEVICE void "):
            refuse_node(node, "a function of the device")
        head, body = node_parts(node, "function_definition", "static", "void", None, None)
        name, given = node_parts(head, "function_declarator", None, None)
        found = items_between(given, "parameter_list", "(", ")")
        for one, block in zip(found[-3:], _BLOCK, strict=True):
            node_parts(one, "parameter_declaration", "unsigned", block)
        params = tuple(map(self.parameter, found[:-3]))
        statements = self.declarations(self.statements_of(body))
        shared = tuple((one, *self.shared[one]) for one in self.shared)
        inside = self.body(statements)
        threads = self.extents.get("tid", 0)
        return KernelText(self.name(name), threads, False, params, self.shared_bytes, shared, self.extents, (), inside)


class _LaunchReader(Reader):
    """Reader of the kernel that calls the two functions."""

    def launch(self, node: Node, functions: tuple[KernelText, KernelText], headers: tuple[str, ...]) -> JoinedText:
        name, limits, given, body = self.head(node)
        found = items_between(given, "parameter_list", "(", ")")
        node_parts(found[-1], "parameter_declaration", "MF_COUNTERS", "mf_counters")
        params = tuple(self.parameter(one, "MF_HANDED") for one in found[:-1])
        first, publish, *rest = self.statements_of(body)
        first_call, block = self.block_call(first, functions[0].name)
        if [" ".join(self.source(one).split()) for one in block] != [f"blockIdx.{axis}" for axis in _AXES]:
            refuse_node(first, "the block of the launch")
        self.expect(publish, "mf::publish();")
        while rest and self.source(rest[0]).split("=")[0].split()[-1] != "mf_group":
            self.coordinate(rest.pop(0))
        declared, branch = rest
        group = self.constant(declared, "mf_group")
        self.variables.add("mf_group")
        condition, inside = node_parts(branch, "if_statement", "if", None, None)
        (last,) = node_parts(condition, "condition_clause", "(", None, ")")
        function, template, arguments = self.call(last)
        if function != "mf::is_last" or [self.source(one) for one in arguments] != ["mf_counters", "mf_group"]:
            refuse_node(last, "the ticket of the group")
        pragma, loop, reset = self.statements_of(inside)
        self.expect(pragma, "#pragma unroll 1")
        self.expect(reset, "mf::reset(mf_counters, mf_group);")
        rounds, statements = self.rounds(loop)
        reuse, then = statements
        self.expect(reuse, "mf::reuse_shared();")
        then_call, then_block = self.block_call(then, functions[1].name)
        blocks = tuple(map(self.integer, then_block))
        threads, alone = limits
        own = self.only_number(last, template)
        own_functions = tuple(replace(one, threads=threads if one.threads == 0 else one.threads) for one in functions)
        return JoinedText(
            name,
            threads,
            alone,
            params,
            (own_functions[0], own_functions[1]),
            first_call,
            then_call,
            group,
            self.extents,
            own,
            rounds,
            blocks,
            headers,
        )

    def rounds(self, node: Node) -> tuple[int, Sequence[Node]]:
        """Return the extent and the statements of the loop over rounds, whose variable is known in them."""
        start, test, step, body = node_parts(node, "for_statement", "for", "(", None, None, ";", None, ")", None)
        match = re.fullmatch(r"mf_round<([0-9]+)", "".join(self.source(test).split()))
        self.expect(start, "int mf_round = 0;")
        self.expect(step, "++mf_round")
        if match is None:
            refuse_node(test, "a loop over rounds")
        self.variables.add("mf_round")
        return int(match[1]), self.statements_of(body)

    def block_call(self, node: Node, function: str) -> tuple[tuple[str, ...], Sequence[Node]]:
        """Return the tensors of a call of a function of one block, and the three coordinates."""
        (inner,) = node_parts(node, "expression_statement", None, ";")
        called, template, given = self.call(inner)
        if called != function or template or len(given) < 4:
            refuse_node(node, f"a call of {function}")
        return tuple(map(self.tensor, given[:-3])), given[-3:]

    def constant(self, node: Node, name: str) -> ir.IntExpr:
        """Return the value of a declared integer of this name."""
        (declared,) = node_parts(node, "declaration", "const", "int", None, ";")
        _, value = node_parts(declared, "init_declarator", None, "=", None)
        if self.source(declared).split("=")[0].strip() != name:
            refuse_node(node, name)
        return self.integer(value)

    def source(self, node: Node) -> str:
        """Return a node's text."""
        return str(node.text.decode())

    def expect(self, node: Node, text: str) -> None:
        """Refuse a node whose text is another one."""
        if " ".join(self.source(node).split()) != text:
            refuse_node(node, repr(text))


__all__ = ["JoinedText", "read_joined", "text_of_joined"]
