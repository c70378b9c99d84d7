"""Generated kernels of a µGraph and their launches, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from mirage_formal.codegen.executable import join_launch, kernel_launch
from mirage_formal.codegen.joined_launches.block_groups import BlockGroups, JoinedProgram
from mirage_formal.codegen.program.plan import Plan, Schedule
from mirage_formal.codegen.program.program import Program
from mirage_formal.records import Binary, KernelLaunch, ProductLaunch


@dataclass(frozen=True, slots=True)
class GeneratedKernel:
    """A generated kernel.

    Attributes:
        operator: Position of its operator, or -1.
        values: The numbers of its operands and results, without band masks that it computes.
        program: Its Program.
        plan: Its plan, if it is graph-defined.
        asked: The schedule that was requested for it, if any.
        early: Whether it lets the next launch start as soon as it begins, and not only when it has nothing left to
            read.
        joined: The groups of the launch before, whose last blocks run this kernel; None if it has a launch of its own.
    """

    operator: int
    values: tuple[int, ...]
    program: Program
    plan: Plan | None = None
    asked: Schedule | None = None
    early: bool = False
    joined: BlockGroups | None = None


@dataclass(frozen=True, slots=True)
class GeneratedLaunches:
    """The launches of a µGraph.

    Attributes:
        steps: Generated kernels and predefined products, in order.
        outputs: The value of each output.
    """

    steps: tuple[GeneratedKernel | ProductLaunch, ...]
    outputs: tuple[int, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the source file of each launch of a generated kernel, in order."""
        return tuple(one.source for one in self.launches if isinstance(one, GeneratedLaunch))

    @property
    def launches(self) -> tuple[GeneratedLaunch | ProductLaunch, ...]:
        """Return what is launched, in order: a joined kernel with the one before it."""
        found: list[GeneratedLaunch | ProductLaunch] = []
        count = sum(isinstance(step, GeneratedKernel) and step.joined is None for step in self.steps)
        number = 0
        for step, behind in zip(self.steps, [*self.steps[1:], None], strict=True):
            if isinstance(step, ProductLaunch):
                found.append(step)
            elif step.joined is None:
                then = behind if isinstance(behind, GeneratedKernel) and behind.joined is not None else None
                found.append(GeneratedLaunch("kernel.cu" if count == 1 else f"kernel{number}.cu", step, then))
                number += 1
        return tuple(found)


@dataclass(frozen=True, slots=True)
class GeneratedLaunch:
    """The launch of a generated kernel.

    Attributes:
        source: Its source file.
        kernel: The kernel.
        then: The kernel that the last blocks of its groups run, if any.
    """

    source: str
    kernel: GeneratedKernel
    then: GeneratedKernel | None = None

    @property
    def program(self) -> Program | JoinedProgram:
        """Return what the launch runs."""
        if self.then is None:
            return self.kernel.program
        assert self.then.joined is not None
        return JoinedProgram(self.kernel.program, self.then.program, self.then.joined)

    def record(self, text: str, cubins: dict[str, Binary]) -> KernelLaunch:
        """Return the record of the launch, with its text and machine code."""
        own, then = self.kernel, self.then
        made = kernel_launch(own.program, own.operator, own.values, self.source, text, cubins)
        if then is None or then.joined is None:
            return made
        return join_launch(made, then.program, then.operator, then.values, then.joined.count)


def launched_programs(one: GeneratedLaunch) -> tuple[Program | JoinedProgram, ...]:
    """Return what the obligations of a launch are about: its Programs, and where it has two how they are joined."""
    if one.then is None:
        return (one.kernel.program,)
    return one.kernel.program, one.then.program, one.program


__all__ = ["GeneratedKernel", "GeneratedLaunch", "GeneratedLaunches", "launched_programs"]
