"""Run by path in a process of its own: Triton decides when it is imported whether it interprets or compiles.

interpret DIR: for each NAME.py its ``run`` on the inputs of NAME.npz, results to NAME.out.npz; and its own ``main``.
compile DIR: for each NAME.json the functions of NAME.py for its architectures, what became of them to NAME.built.json.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem.replace("-", "_"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def laid(values: Any, shape: Any, strides: Any, dtype: Any) -> Any:
    count = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    made = torch.zeros(count, dtype=dtype).as_strided(shape, strides)
    for index in itertools.product(*(range(n) if step == 0 else (0,) for n, step in zip(shape, strides, strict=True))):
        whole = tuple(i if step == 0 else slice(None) for i, step in zip(index, strides, strict=True))
        made[whole] = torch.as_tensor(np.ascontiguousarray(values[whole])).to(dtype)
    return made


def interpret(path: Path) -> None:
    module = loaded(path)
    found: dict[str, Any] = {}
    given = path.with_suffix(".npz")
    if given.exists():
        with np.load(given) as arrays:
            inputs = [laid(arrays[f"x{i}"], *about) for i, about in enumerate(module.INPUTS)]
        wide = [one.double() for one in inputs]
        for name, result in (("run", module.run(*inputs, poison=True)), ("reference", module.reference(*wide))):
            for i, one in enumerate(result if isinstance(result, tuple) else (result,)):
                found[f"{name}{i}"] = one.double().numpy()
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        found["main"] = np.array(module.main())
    found["said"] = np.array(said.getvalue())
    np.savez(path.with_suffix(".out.npz"), **found)


def build(path: Path) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = loaded(path)
    found = []
    for one in json.loads(path.with_suffix(".json").read_text()):
        for arch in one["archs"]:
            function = getattr(module, one["name"])
            options = {"num_warps": one["warps"], "num_stages": one["stages"], "enable_fp_fusion": False}
            source = ASTSource(function, dict(zip(function.arg_names, one["types"], strict=True)), {})
            made = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
            row = {"name": one["name"], "arch": arch, "shared": made.metadata.shared, "cubin": len(made.asm["cubin"])}
            row |= {"ttir": made.asm["ttir"]} if one["text"] else {}
            found.append(row | {"fused": "fma.rn.f32" in made.asm["ptx"]})
    path.with_suffix(".built.json").write_text(json.dumps(found))


def main() -> int:
    mode, root = sys.argv[1], Path(sys.argv[2])
    warnings.simplefilter("ignore")  # NumPy's, of what padded rows overflow to
    for path in sorted(root.glob("*.py")):
        try:
            if mode == "interpret":
                interpret(path)
            elif path.with_suffix(".json").exists():
                build(path)
        except Exception:
            path.with_suffix(".failed").write_text(traceback.format_exc())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
