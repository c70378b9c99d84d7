"""Generator of the file with ModelNew: the problem's own text, the evidence paths of candidates, and a forward."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.fx import Graph
from torch.utils import _pytree as pytree

from mirage_formal.support.errors import UnsupportedError
from mirage_formal.torch.import_result import Imported
from mirage_formal.torch.modules.trace import ModuleTrace


def model_new(
    said: Sequence[str], source: str, traced: ModuleTrace, graph: Graph, evidence: Sequence[Path], beside: Path
) -> str:
    """Return the text of a file with ModelNew.

    Args:
        said: Lines of its docstring.
        source: The problem file, with the sizes that were used.
        traced: Its import.
        graph: The rewritten graph; see ``rewrite``.
        evidence: Directories of the candidates.
        beside: File for the graph's constants; it is not written if there are none.

    Raises:
        UnsupportedError: The module's result has a structure that cannot be written down.
    """
    state, constants = _placeholder_expressions(traced.imported, graph, beside)
    code = graph.python_code("self")
    text = code.src.replace("def forward(self, ", "def _computed(", 1).replace(
        "def forward(self)", "def _computed()", 1
    )
    used = {name: value for name, value in code.globals.items() if re.search(rf"\b{re.escape(name)}\b", text)}
    head = "\n".join(said)
    parts = [f'"""{head}\n"""\n', source.rstrip("\n"), "", ""]
    parts += [_imports(used), "from mirage_formal.torch.integrations.operator_loading import operator_at", ""]
    parts += ["# Each is replayed by the checker, and then an operator of torch.ops.mirage_formal."]
    parts += [f"operator_at({str(path)!r})" for path in evidence]
    parts += constants
    parts += ["", "", text.strip(), "", "", "class ModelNew(Model):"]
    parts += ["    def forward(self, *inputs):"]
    parts += [f"        found = _computed({', '.join(state)})", f"        return {_structure(traced.out)}", ""]
    return "\n".join(parts)


def _placeholder_expressions(imported: Imported, graph: Graph, beside: Path) -> tuple[list[str], list[str]]:
    """Return the expressions for the graph's placeholders, and the source lines that read its constants."""
    given, constants, count = [], {}, 0
    for node in graph.nodes:
        if node.op != "placeholder":
            continue
        kind, _, path = imported.arguments.get(node.name, "argument").partition(" ")
        if kind in ("parameter", "buffer"):
            given.append(f"self.get_{kind}({path!r})")
        elif kind == "constant":
            constants[node.name] = imported.given[node.name].detach()
            given.append(f"_CONSTANTS[{node.name!r}]")
        else:
            given.append(f"inputs[{count}]")
            count += 1
    if not constants:
        return given, []
    torch.save(constants, beside)
    return given, [f"_CONSTANTS = torch.load({str(beside)!r}, weights_only=True)"]


def _imports(names: Mapping[str, Any]) -> str:
    """Return the lines that define the global names of a graph's text."""
    lines = ["import torch"]
    for name, value in names.items():
        if isinstance(value, ModuleType):
            lines.append(f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}")
        elif isinstance(value, float):
            lines.append(f"{name} = float({str(value)!r})")
        else:
            same = value.__name__ == name
            lines.append(f"from {value.__module__} import {value.__name__}" + ("" if same else f" as {name}"))
    return "\n".join(dict.fromkeys(lines))


def _structure(out: Any) -> str:
    """Return the expression of the module's result, given the list of its tensors."""
    if out.is_leaf():
        return "found[0]"
    flat = all(child.is_leaf() for child in out.children())
    if flat and out.type in (tuple, list):
        return f"{out.type.__name__}(found)"
    try:
        text = pytree.treespec_dumps(out)
    except Exception as error:  # torch says in its own way that a type is not registered
        raise UnsupportedError(f"expected a result of tuples, lists and dicts, got {error}") from None
    return f"torch.utils._pytree.tree_unflatten(found, torch.utils._pytree.treespec_loads({text!r}))"


__all__ = ["model_new"]
