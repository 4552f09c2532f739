"""Which dataset the parts of a run belong to, and the open manifests of those datasets."""

from __future__ import annotations

import logging
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Container

from hs_formats.control import ControlFolder, same_folder
from hs_formats.dataset import check_dataset_name
from hs_formats.errors import FormatError
from hs_formats.names import CANARY_RUN, is_run_id
from hs_mover.books import Books, noted_names
from hs_mover.destination import Destination
from hs_mover.task import Elsewhere, SourceError

__all__ = ["Registry"]

_log = logging.getLogger(__name__)


class Registry:
    """Runs registered in one scratch folder, and `Books` by dataset."""

    def __init__(self, control: ControlFolder, destination: Destination, mover_id: str) -> None:
        self._control = control
        self._destination = destination
        self._mover_id = mover_id
        self._datasets: dict[str, str] = {}
        self._unclaimed: set[str] = set()
        self._elsewhere: set[str] = set()
        self._books: dict[str, Books] = {}
        self._doubtful: dict[str, set[str]] = {}

    def runs(self) -> list[str]:
        """All runs registered in the control folder whose datasets are here."""
        stems = (path.stem for path in self._control.runs.glob("*.json"))
        return sorted(run for run in stems if is_run_id(run) and run != CANARY_RUN and not self._is_elsewhere(run))

    def _is_elsewhere(self, run: str) -> bool:
        try:
            self._dataset_of(run, tell=False)  # it may have no part in scratch
        except Elsewhere:
            return True
        except SourceError:
            pass  # whoever needs it will say so
        return False

    def books_of(self, run: str) -> Books | None:
        """Manifest of the dataset of `run`, or None where no client has claimed the run.

        Raises:
            Elsewhere: the dataset is below another destination.
            SourceError: the registration cannot be read.
        """
        dataset = self._dataset_of(run)
        if dataset is None:
            return None
        books = self._books.get(dataset)
        if books is None:
            paths = self._destination.dataset(dataset)
            doubtful = self._doubtful.setdefault(dataset, set())
            books = Books(paths, self._mover_id, make=self._destination.make, doubtful=doubtful)
            self._books[dataset] = books
        return books

    def loaded_books_of(self, run: str, present: Container[str]) -> Books | None:
        """`books_of`, with the manifest lines of `run` read; those of parts among `present` are remembered.

        Raises:
            Elsewhere: the dataset is below another destination.
            SourceError: the registration cannot be read.
            OSError: the destination cannot be read.
        """
        books = self.books_of(run)
        if books is not None and not books.has_run(run):
            # An unmounted destination looks like an empty one, so it is checked on both sides of the reading.
            self._destination.check()
            books.load_run(run, present)
            described = books.info() is not None
            self._destination.check()
            if not described:  # clients write it before they register a run
                _log.warning(
                    "%s has no dataset.json: run %s was begun with another --dst, and its parts are stored here now",
                    books.paths.shown,
                    run,
                )
        return books

    def noted(self, runs: Collection[str], *, turn: Callable[[], object]) -> dict[str, array[int]]:
        """`noted_names` of `runs`, each dataset's manifests read once however many runs it has had.

        Raises:
            SourceError: a registration cannot be read.
            OSError: the destination cannot be read.
        """
        by_dataset: dict[Books, list[str]] = defaultdict(list)
        for run in runs:
            books = self.books_of(run)
            if books is not None:
                by_dataset[books].append(run)
        found: dict[str, array[int]] = {}
        for books, group in by_dataset.items():
            self._destination.check()
            books.sync_written()
            found |= noted_names(books.paths, group, turn=turn)
            self._destination.check()
        return found

    def forget_books(self) -> None:
        """Close and drop all manifests: what they say may not be true any more."""
        for books in self._books.values():
            books.close()
        self._books.clear()

    def _dataset_of(self, run: str, *, tell: bool = True) -> str | None:
        known = self._datasets.get(run)
        if known is not None:
            return known
        try:
            state = self._control.read_run(run)
            if state is not None and state.dst and not same_folder(state.dst, str(self._destination.location)):
                if tell and run not in self._elsewhere:
                    self._elsewhere.add(run)
                    _log.warning(
                        "run %s was begun with --dst %s: its parts stay in scratch until a mover stores there again",
                        run,
                        state.dst,
                    )
                raise Elsewhere(f"belongs to a dataset in {state.dst}")
            if state is not None:
                self._datasets[run] = check_dataset_name(state.dataset)
                return self._datasets[run]
            why = "is registered by no client here"
        except FormatError as error:
            why = f"is registered for a folder that cannot be: {error}"
        except OSError as error:
            raise SourceError(f"the registration of run {run}: {error}") from error
        if run not in self._unclaimed:
            self._unclaimed.add(run)
            _log.warning("run %s %s; its parts go to %s", run, why, self._destination.unclaimed_shown(run))
        return None
