"""What tests bound by counting calls, timed: two checkouts, in turns, as ratios.

Run: .venv/bin/python -m benchmarks.speed OLD NEW [--rounds N] [CASE ...]

OLD and NEW are checkouts of this repository. Every round starts a fresh process of each, the first one changing, which
does one case until it has taken half a second, and tells its shortest processor time. Printed are medians over rounds.

Options:
  old DIR
  new DIR
  cases [CASE...]  block_cost, counterexample, safety, towers, replay; all if none is named
  --rounds N       [default: 5]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.harness import in_process, in_turns, parser_of, row, spread

Work = Callable[[], object]


def block_cost() -> Work:
    """The cost model on attention's kernel."""
    from mirage_formal.codegen.cost import block_cost as cost
    from mirage_formal.graph.graph import GraphDefined
    from tests.codegen.test_cost import H200, gqa

    graph = gqa(1, 16)
    types = [given.tensor for given in graph.inputs]
    (kernel,) = graph.ops[:1]
    assert isinstance(kernel, GraphDefined)
    return lambda: cost(kernel.graph, types, H200)


def counterexample() -> Work:
    """Counterexamples of all wrong claims in tests/refute, at tiny sizes."""
    from mirage_formal.prove.counterexamples.refute import find_counterexample
    from tests.kit.proofs.claims import load

    made = [claim.tiny() for claim in load("refute")]
    return lambda: [find_counterexample(*one, seed=7) for one in made]


def safety() -> Work:
    """The obligations of a large matrix product."""
    from mirage_formal.codegen.safety.safety import discharge_safety
    from tests.kit.kernels import safety_programs

    program = safety_programs.gemm(16, 6144, 4096)
    return lambda: discharge_safety(program)


def towers() -> Work:
    """Expressions that share their parts, 3,000 levels high."""
    from mirage_formal.logic.terms import order_key, postorder
    from tests.logic.test_terms import tower

    return lambda: (len(list(postorder([tower(3_000)]))), order_key(tower(3_000)))


def replay() -> Work:
    """The checker's kernel on all proofs written by hand."""
    from mirage_formal.check.proof_composition import replay_composed as again
    from tests.kit.proofs.hand_proofs import PAIRS, text

    proofs = [(pair, text(name)) for name, pair in PAIRS.items()]
    return lambda: [again(*pair, proof) for pair, proof in proofs]


CASES = {case.__name__: case for case in (block_cost, counterexample, safety, towers, replay)}
_ENOUGH_S = 0.5


def shortest(name: str) -> float:
    """Processor seconds of one case, the least of as many times as fit into half a second."""
    work = CASES[name]()
    work()
    taken: list[float] = []
    while sum(taken) < _ENOUGH_S:
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return min(taken)


def measured(checkout: Path, name: str) -> float:
    """The same in a process of its own, with the package and the tests of a checkout."""
    variables = {"PYTHONPATH": str(checkout)}
    return float(in_process("benchmarks.speed:shortest", name, variables=variables, cwd=checkout))


def main() -> None:
    """Print the table."""
    parser = parser_of(__doc__)
    arguments = parser.parse_args()
    if unknown := set(arguments.cases) - set(CASES):
        parser.error(f"expected cases of {', '.join(CASES)}, got {', '.join(sorted(unknown))}")
    print("| case | old ms | new ms | new / old |")
    print("|---|--:|--:|---|")
    for name in arguments.cases or CASES:
        checkouts = (arguments.old.resolve(), arguments.new.resolve())
        pairs = in_turns(checkouts, partial(measured, name=name), arguments.rounds)
        old, new = (1e3 * median(side) for side in zip(*pairs, strict=True))
        print(row(name, f"{old:.3f}", f"{new:.3f}", spread([b / a for a, b in pairs])), flush=True)


if __name__ == "__main__":
    main()
