"""Bounds on inputs, and on the size, time and memory of solver queries.

An input beyond a bound is refused before it costs time or memory. A solver beyond one is stopped, and its answer is
unknown.

docs/run-directory.md lists them, with those that readers of one format have beside them: of µGraphs in
``graph/formats/json.py``, of proofs in ``check/proof/parser.py``. They are far above the sizes that a search writes;
the memory of a reader stays below 1 GiB.
"""

from __future__ import annotations

from typing import Final

#: Bytes of one file.
MAX_FILE_BYTES: Final = 64 << 20
#: Bytes of one proof: the prover gives up beyond, the checker refuses it.
MAX_PROOF_BYTES: Final = 1 << 20
#: Bytes of the journal of a search.
MAX_JOURNAL_BYTES: Final = 256 << 20
#: Lines of a log, and bytes of one of them.
MAX_LINES: Final = 200_000
MAX_LINE_BYTES: Final = 64 << 20

# --- one JSON text ---------------------------------------------------------------------------------------------------

#: Brackets inside one another.
MAX_DEPTH: Final = 64
#: Brackets that open, commas, colons and quotation marks, those inside of texts counted as well.
MAX_MARKS: Final = 1 << 22
#: Characters of one number.
MAX_NUMBER: Final = 128

# --- one directory, and all that is below it -------------------------------------------------------------------------

#: Files and directories.
MAX_ENTRIES: Final = 100_000
#: Bytes of all files.
MAX_DIRECTORY_BYTES: Final = 512 << 20
#: Directories inside one another.
MAX_LEVELS: Final = 16

# --- one question for solvers: a text beyond a bound is refused before any solver sees it ----------------------------

#: Characters of one question.
MAX_QUESTION: Final = 1 << 22
#: Nested parentheses.
MAX_PARENTHESES: Final = 100
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
#: Milliseconds that z3 has for a question of the search: is this expression a subexpression of the program's?
ORACLE_MS: Final = 100
#: Seconds beyond its own limit after which a solver that does not answer is killed.
GRACE_S: Final = 10.0
#: Seconds for the solvers' process to load them and to limit itself.
START_S: Final = 60.0
#: Seconds of processor time that solvers have for everything in one directory of a candidate or of its kernels, when it
#: is checked.
DIRECTORY_S: Final = 60.0
#: Seconds of processor time that solvers have for everything below the path that is checked.
CHECK_S: Final = 1_800.0

# --- work ------------------------------------------------------------------------------------------------------------

#: Options of products that a layout tries: about a second. It is not a time, so that equal problems have equal answers
#: on every machine: kernels are derived again from their µGraphs.
LAYOUT_WORK: Final = 200_000
#: Instances of axioms in one certificate of an abstract expression.
CERTIFICATE_INSTANCES: Final = 10_000
#: States of a search space that is enumerated again when a run is checked, and seconds of processor time for it.
ENUMERATED_STATES: Final = 1_000_000
ENUMERATION_S: Final = 300.0
#: Most operators of a candidate in a space of guided search that is enumerated again; larger ones have more states.
ENUMERATED_OPERATORS: Final = 4

# --- the solvers' process --------------------------------------------------------------------------------------------

#: Bytes of its address space.
CHILD_MEMORY: Final = 1 << 30
#: Seconds of processor time of its life; it is replaced before it has used half of them.
CHILD_CPU_S: Final = 3_600
