"""Digest of the code of a µGraph: its launches and the CUDA C++ of its kernels, without their machine code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import msgspec

from mirage_formal.codegen.generate import NO_SCHEDULES, NONE_EARLY, NONE_JOINED, generate
from mirage_formal.codegen.program.plan import Schedule
from mirage_formal.codegen.target import Target
from mirage_formal.device.compile import compilation_environment_digest
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import KernelLaunch, Launch, ProductLaunch, sha256


def digest_of_text(launches: Sequence[Launch], sources: Iterable[str]) -> str:
    """Return a digest of launches, of their sources, and of the headers that these are compiled with."""
    bare = [msgspec.structs.replace(one, cubins={}) if isinstance(one, KernelLaunch) else one for one in launches]
    return sha256(msgspec.json.encode([compilation_environment_digest(sources), bare]))


def digest_of_launches(
    graph: KernelGraph,
    target: Target,
    schedules: Mapping[int, Schedule] = NO_SCHEDULES,
    early: Set[int] = NONE_EARLY,
    joined: Set[int] = NONE_JOINED,
) -> str:
    """Return the digest of the launches that ``kernel_build.build`` makes, without proofs or compilation.

    Raises:
        UnsupportedError: It has no kernels.
    """
    from mirage_formal.codegen.joined_launches.joined_printer import emit_launched

    launches, texts = list[Launch](), list[str]()
    for one in generate(graph, target, schedules, early, joined).launches:
        if isinstance(one, ProductLaunch):
            launches.append(one)
        else:
            texts.append(emit_launched(one.program))
            launches.append(one.record(texts[-1], {}))
    return digest_of_text(launches, texts)


__all__ = ["digest_of_launches", "digest_of_text"]
