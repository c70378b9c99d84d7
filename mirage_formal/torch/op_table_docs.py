"""The table of operators as a document: ``python -m mirage_formal.torch.op_table_docs`` prints docs/torch.md."""

from __future__ import annotations

from typing import Final

from mirage_formal.torch.op_table import ROWS, TorchOperatorRow

_HEAD: Final = """\
# Operators of PyTorch

`mirage_formal.from_torch(module, args)` reads a module or a function as a program. It captures the module with
`torch.export`, before decomposition, and imports the operators of ATen in the first table. What it has no rule for
stays with torch: the second table says why some do not, and `report()` names each operator that was left out, with the
user's line. A program reads tensors of float16, bfloat16 and float32, and masks of booleans, as they lie in memory.
Extents are those of the arguments; arguments may be on the meta device.

## What is promised

On every input, infinities and NaN among them, whatever computes a program (the CPU, kernels, Triton files):

- Where PyTorch's result is finite, the program's is finite and near it. That holds up to the largest values at which
  PyTorch's own intermediates are finite, and also where what PyTorch's selections discard is infinite or NaN.
- Where PyTorch's result is no number because an operator has none there (0 / 0, the logarithm of a negative number, an
  operand that is NaN), the program's is not finite either.
- Where PyTorch has only overflowed on the way, as log(exp(89)) does in float32, the program's result may be finite.

Where PyTorch's result is an infinity that comes of infinite arguments, the program's is not finite, but may be NaN.
Three exceptions are known:

- A candidate computes in another order than PyTorch, so other intermediate results may overflow. Candidates are refused
  that overflow where the module's operators do not when one argument, of float32 or bfloat16, has values of 1e25. At
  larger values candidates may overflow, as FlashAttention does, which divides a softmax by its sum at the end.
- Products of float32 on tensor cores (docs/kernels.md) may be infinite above (1 - 2^-10) 2^128 (3.4e38), and may round
  operands below 2^-126, the smallest normal number, to multiples of 2^-136.
- log(sum(exp(s))) that one kernel stores and another subtracts from s is rounded as the program's operators round it,
  so of a large s the difference loses digits that log_softmax keeps.

Near means: as far off as roundings of the element type may move PyTorch's own result. `optimize` and the backend of
torch.compile compare every region with PyTorch once, in the module's own types, on the arguments and on drawn values; a
region that breaks the promise stays with PyTorch, and the report names the smallest operator that differs. What cannot
keep the promise is not imported: the conditions below say what that is.

What follows from it:

- Masks are booleans, one byte each; those of `tril`, `triu` and causal attention are no tensors of a call, because
  kernels compute them ([band masks](kernels.md)). `where`, `masked_fill`, `tril` and `triu` are selections: what is not
  chosen has no influence. Comparisons make masks, of results in narrower types as PyTorch has stored them; NaN compares
  as in PyTorch. A mask that is a result of the module stays with PyTorch.
- Constants (`zeros_like`, `full`, numbers) are attributes of what reads them, or tensors of one element. Programs have
  0 for 0 times anything, so a factor of 0 stays with PyTorch.
- A row of a softmax that has nothing but minus infinity is NaN; a query of `scaled_dot_product_attention` without a key
  has zeros, with a mask of booleans, of numbers with minus infinity, or none. Scores at keys that a mask of booleans
  leaves out have no influence, not even on the maximum. Values there are multiplied by 0, which NaN survives, as it
  does in PyTorch.
- What PyTorch computes in several steps it computes in float32, and so do programs: squares, exponentials and sums of
  float16 and bfloat16 are cast to float32 before. Attention and a bias added to a product are exceptions: there the
  program's intermediate tensors have the narrower type, and their values are not rounded to it. A candidate that stores
  such a tensor between two kernels does round it, and replaces nothing if it breaks the promise: each candidate is
  compared with PyTorch in its own element types before it is installed, up to values of 400 in all arguments, and to
  the type's largest in some; large regions at smaller extents, for overflow alone. In attention the scores of float16
  are such a tensor. Formulas are PyTorch's, such as logarithms in losses that are at least -100.
- Between operators, values of narrower types need not be rounded, as in kernels of torch.compile. A cast to a narrower
  type is rounded (`round_to`) where its result becomes a wider type again, which is how fake quantization and split
  precision are written. Otherwise the report says "intermediate not rounded". With `rounding="exact"`, an option of
  `from_torch`, `optimize` and the backend, all casts and all results of narrower types are rounded.

Views are no operators. They become strides, offsets and index maps of the tensor that is read, and move behind
operators until a product reads them, or the program ends. Casts to float32 whose results are all rounded again, as
around norms and softmax, are the identity over the real numbers, and are listed by the report. An RMS norm that is
written out becomes `rms_norm`.

## The tables

Each row has an example, on which tests compare the imported program in float64 with torch. The letters stand for
tensors of normal numbers: {letters}. A letter behind p stands for positive numbers, one behind m for booleans. The
tables are printed by `python -m mirage_formal.torch.op_table_docs`.
"""


def document() -> str:
    """The text of docs/torch.md."""
    from mirage_formal.torch.op_table import LETTERS

    letters = ", ".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in sorted(LETTERS.items()))
    taken = [row for row in ROWS if not row.refused]
    lines = [_wrapped(_HEAD.format(letters=letters)).rstrip("\n"), "", "## Imported", ""]
    lines += ["| operator | in a program | conditions | element types | example |", "|---|---|---|---|---|"]
    lines += [
        f"| `{row.name}` | {_cell(row.means)} | {_cell(row.when)} | {row.types} | `{_cell(row.example)}` |"
        for row in taken
    ]
    lines += ["", "## Left to torch", "", "| operator | why | example |", "|---|---|---|"]
    lines += [f"| `{row.name}` | {_cell(row.refused)} | `{_cell(row.example)}` |" for row in ROWS if row.refused]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _wrapped(text: str) -> str:
    """Paragraphs and lists in lines of at most 120 characters."""
    from textwrap import fill

    def lines(part: str) -> str:
        if part.startswith("#"):
            return part
        items = part.split("\n- ")
        if not part.startswith("- "):
            return fill(" ".join(part.split()), 120, break_long_words=False)
        whole = (" ".join(item.removeprefix("- ").split()) for item in items)
        return "\n".join(
            fill(item, 120, initial_indent="- ", subsequent_indent="  ", break_long_words=False) for item in whole
        )

    return "\n\n".join(map(lines, text.strip("\n").split("\n\n")))


__all__ = ["TorchOperatorRow", "document"]

if __name__ == "__main__":
    print(document())
