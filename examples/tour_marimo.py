"""The tour as a marimo notebook: ``marimo edit examples/tour_marimo.py``, or ``python examples/tour_marimo.py``.

What is shown is that of examples/tour.md, which explains more. It needs no GPU and takes about half a minute.
"""
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators

import marimo

__generated_with = "0.25.2"
app = marimo.App()


@app.cell
def _():
    import subprocess
    import sys
    from collections import Counter
    from pathlib import Path

    import marimo as mo

    import mirage_formal as mf
    from mirage_formal.report.reading import read_report

    return Counter, Path, mf, mo, read_report, subprocess, sys


@app.cell
def _(mo):
    mo.md("""
    # A tour

    A *tensor program* is a graph of operators such as matrix products and sums. mirage_formal searches for programs
    that compute the same with fewer kernels, proves that they compute the same, and writes their CUDA code.

    The program: every query is compared with every key, `exp` makes the comparisons positive, and the values are
    averaged with these weights.
    """)
    return


@app.cell
def _(mf):
    def tensors():
        graph = mf.new_kernel_graph()
        q = graph.new_input(dims=(2, 64, 64), dtype=mf.float16, name="Q")
        k = graph.new_input(dims=(2, 64, 4096), dtype=mf.float16, name="K")
        v = graph.new_input(dims=(2, 4096, 64), dtype=mf.float16, name="V")
        return graph, q, k, v

    def softmax_of(comparisons):
        weights = comparisons.exp()
        return weights / weights.sum(-1, keepdim=True)

    program, _q, _k, _v = tensors()
    program.mark_output(softmax_of(_q @ _k) @ _v)
    program
    return program, softmax_of, tensors


@app.cell
def _(mo):
    mo.md("""
    The search. Every row comes with a proof; estimated microseconds put the rows in order.
    """)
    return


@app.cell
def _(mf, program):
    results = mf.superoptimize(program, config="attention", keep=2, name="tour", out="runs/tour", force=True)
    results
    return (results,)


@app.cell
def _(mo):
    mo.md("""
    The best of them. A large box is one kernel, and inside of it is what one of its blocks does. `K x→2`: the
    blocks along the grid's axis x each read their own part of dim 2 of K.
    """)
    return


@app.cell
def _(results):
    best = results[0]
    best.graph
    return (best,)


@app.cell
def _(mo):
    mo.md("""
    How are sums over keys split? The first sentences of the explanation, which are made from the proof:
    """)
    return


@app.cell
def _(best):
    explanation = best.explain()
    sentences, _, steps = explanation.partition("\n\nSteps\n")
    print(sentences)
    return (steps,)


@app.cell
def _(mo):
    mo.md("""
    The proof ends with one formula for both outputs, and with the conditions under which that holds:
    """)
    return


@app.cell
def _(steps):
    print(steps[steps.index("Output part 0") :])
    return


@app.cell
def _(mo):
    mo.md("""
    A command that shares no code with the prover establishes all of it again, from the files:
    """)
    return


@app.cell
def _(best, subprocess, sys):
    def command(*words):
        done = subprocess.run([sys.executable, "-m", "mirage_formal", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run = best.directory.parents[1]
    print(command("check", str(run)))
    return command, run


@app.cell
def _(mo):
    mo.md("""
    A graph that is wrong: attention for each half of the keys by itself, then the average of both. The verdict
    carries an input on which the two differ; its elements are 0 but for those that are listed.
    """)
    return


@app.cell
def _(mf, program, softmax_of, tensors):
    wrong, _q, _k, _v = tensors()
    _first = softmax_of(_q @ _k[:, :, :2048]) @ _v[:, :2048, :]
    _second = softmax_of(_q @ _k[:, :, 2048:]) @ _v[:, 2048:, :]
    wrong.mark_output((_first + _second) * 0.5)
    verdict = mf.equivalence(program, wrong)
    print(verdict.counterexample)
    verdict
    return


@app.cell
def _(mo):
    mo.md("""
    CUDA code for the best result, and what must hold for it to be safe (its *obligations*):
    """)
    return


@app.cell
def _(Counter, Path, command, read_report, run):
    print(command("build", str(run), "--count", "1"))
    print("\n".join(next(Path(run, "kernels").glob("001-*/kernel0.cu")).read_text().splitlines()[:20]))
    report = read_report(run)
    kinds = Counter(one.kind for one in report.best.code.obligations)
    print(*(f"{count:4} {kind}" for kind, count in kinds.most_common()), sep="\n")
    return (report,)


@app.cell
def _(mo):
    mo.md("""
    Everything on one page, which needs no network:
    """)
    return


@app.cell
def _(best, report):
    assert not report.broken
    page = best.show("runs/tour.html", browser=False)
    print(page.name, f"{page.stat().st_size:,} bytes")
    return


if __name__ == "__main__":
    app.run()
