"""Reader of untrusted evidence: an error becomes a fault with the file's name, and never a traceback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.records import read_file, resolve_inside
from mirage_formal.report.model import EvidenceFault
from mirage_formal.support.errors import FormatError, MirageError

R = TypeVar("R")


class EvidenceReader:
    """Reader of a directory, with the faults that it found.

    Args:
        root: The directory.
        name: Prefix of file names in faults; empty for the reported directory.
    """

    def __init__(self, root: Path, name: str = "") -> None:
        self.root = root
        self.name = name
        self.faults: list[EvidenceFault] = []

    def below(self, relative: str) -> EvidenceReader:
        """Return the reader of a directory inside, with a list of faults of its own.

        Raises:
            FormatError: The path leads out of the directory.
        """
        return EvidenceReader(resolve_inside(self.root, relative), f"{self.name}{relative}/")

    @contextmanager
    def reading(self, file: str) -> Iterator[None]:
        """Catch errors inside the ``with`` block and record them as faults of this file."""
        try:
            yield
        except MirageError as error:
            where = f"{error.where}: " if error.where and error.where != file else ""
            self.fault(file, f"{where}{error.what}")
        except OSError as error:
            self.fault(file, f"cannot be read: {error.strerror or type(error).__name__}")
        except (ValueError, RecursionError, msgspec.MsgspecError) as error:
            self.fault(file, f"cannot be read: {str(error)[:300] or type(error).__name__}")

    def fault(self, file: str, what: str) -> None:
        """Add a fault of a file."""
        self.faults.append(EvidenceFault(f"{self.name}{file}", what))

    def there(self, file: str) -> bool:
        """Return whether a file exists."""
        return (self.root / file).is_file()

    def data(self, file: str) -> bytes:
        """Return the bytes of a file inside, of bounded size.

        Raises:
            MirageError: See ``read_file``.
        """
        return read_file(resolve_inside(self.root, file))

    def value(self, file: str, decode: Callable[[bytes], R]) -> R | None:
        """Return the decoded content of a file; None where it cannot be read, which is a fault."""
        with self.reading(file):
            return decode(self.data(file))
        return None

    def graph(self, file: str, text: bytes | msgspec.Raw) -> KernelGraph | None:
        """Return a well-formed µGraph; None with a fault if the text is none."""
        with self.reading(file):
            graph = from_json(bytes(text), file)
            kernel_types(graph)
            return graph
        return None

    def same_digest(self, file: str, graph: KernelGraph, wanted: str) -> bool:
        """Return whether a graph has the digest that the evidence names; add a fault if not."""
        with self.reading(file):
            if (found := digest(graph)) != wanted:
                raise FormatError(f"digest of the graph: expected {wanted}, got {found}")
            return True
        return False
