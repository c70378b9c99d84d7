"""Every bound on what solvers are asked and on what they may use, in one place; docs/run-directory.md lists them.

A text beyond a bound is refused before any solver sees it; a solver beyond one is stopped, and its answer is unknown.
"""

from __future__ import annotations

from typing import Final

# --- texts -----------------------------------------------------------------------------------------------------------

#: Characters of one question.
MAX_TEXT: Final = 1 << 22
#: Nested parentheses.
MAX_DEPTH: Final = 100
#: Commands of one question.
MAX_COMMANDS: Final = 50_000
#: Bits of a bit-vector.
MAX_WIDTH: Final = 1024
#: Digits of a number.
MAX_DIGITS: Final = 400
#: Questions of one file of questions.
MAX_QUESTIONS: Final = 20_000

# --- time ------------------------------------------------------------------------------------------------------------

#: Milliseconds that each solver has for a certificate, a digit lemma, or an obligation that is checked again.
QUESTION_MS: Final = 10_000
#: Milliseconds that each solver has for a safety obligation when kernels are made.
SAFETY_MS: Final = 5_000
#: Seconds beyond its own limit after which a solver that does not answer is killed.
GRACE_S: Final = 10.0
#: Seconds for the solvers' process to load them and to confine itself.
START_S: Final = 60.0
#: Seconds that solvers have for everything in one directory of a candidate or of its kernels, when it is checked.
DIRECTORY_S: Final = 60.0
#: Seconds that solvers have for everything below the path that is checked.
CHECK_S: Final = 1_800.0

# --- work ------------------------------------------------------------------------------------------------------------

#: Work of z3 for a layout, which needs no answer to be right, as z3 counts it itself: about two seconds. It is not a
#: time, so that equal problems have equal answers on every machine: kernels are derived again from their µGraphs.
LAYOUT_WORK: Final = 4_000_000

# --- the solvers' process ---------------------------------------------------------------------------------------------

#: Bytes of its address space.
CHILD_MEMORY: Final = 1 << 30
#: Seconds of processor time of its life; it is replaced before it has used half of them.
CHILD_CPU_S: Final = 3_600
