"""What a run charges, built once by its job, and the one way to a single noisy number: reserve,
release, commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from dpcore.accounting.budget import events_once, release_once
from dpcore.accounting.events import Events
from dpcore.errors import InputError
from dpcore.mechanisms import Mechanism
from dpcore.problem import Adjacency
from tasks.ledger.blocks import ALL, Blocks
from tasks.ledger.facts import RowFacts
from tasks.ledger.ledger import Ledger
from tasks.ledger.records import OF
from tasks.ledger.reservation import Reservation


@dataclass(frozen=True, slots=True)
class Charge:
    """What a run reads and pays for: data set, ``blocks``, division of its rows, period, files,
    configuration.

    ``facts`` map rows to units and blocks (``tasks.ledger.facts``); ``reading`` says what else was
    read of the files.

    ``unit``, ``adjacency`` and form of the ``noise`` are those of the run: a number that is
    released beside a training has the same ones.
    """

    dataset: str
    unit: str
    adjacency: Adjacency
    noise: str = "rounded"
    blocks: tuple[str, ...] = (ALL,)
    public: bool = False
    division: Blocks | None = None
    period: str | None = None
    files: tuple[Path, ...] = ()
    test_files: tuple[Path, ...] = ()
    config_sha256: str | None = None
    weights_sha256: str | None = None  # of the model that a released number is about
    facts: RowFacts | None = None
    reading: Mapping[str, Any] | None = None

    def require_own_test(self, owners: Iterable[str]) -> None:
        """Raise ``InputError`` where the test table belongs to other private data sets: this charge
        is not theirs.
        """
        if others := sorted(set(owners) - {self.dataset}):
            raise InputError(
                f"Expected test rows of {self.dataset!r}, got "
                f"{', '.join(map(str, self.test_files))}, which belongs to "
                f"the private {others[0]!r}: numbers about its rows would be charged to the wrong "
                f"budget; correct "
                f"data.test_path, or train on {others[0]!r}."
            )

    def events(self, mechanism: Mechanism) -> Events:
        """What one release of ``mechanism`` costs."""
        return events_once(mechanism, adjacency=self.adjacency, unit=self.unit, noise=self.noise)

    def reserve(self, ledger: Ledger, events: Events) -> Reservation:
        """Charge ``events``; on disk when this returns.

        Raises ``BudgetExceeded`` where a block has no room, ``InputError`` for test rows of another
        private data set.
        """
        self.require_own_test(
            ledger.private_names(None, self.test_files) if self.test_files else ()
        )
        return ledger.reserve(
            self.dataset,
            events,
            self.blocks,
            {
                key: found
                for key, found in (("config", self.config_sha256), (OF, self.weights_sha256))
                if found
            },
            public=self.public,
            period=self.period,
            fingerprint=ledger.fingerprint(self.files) if self.files else None,
            division=self.division,
            facts=self.facts,
            reading=None if self.reading is None else dict(self.reading),
        )


def charged_once(
    ledger: Ledger,
    charge: Charge,
    mechanism: Mechanism,
    records: Any,
    query: Callable[[Any], Any],
    tell: Callable[[Any, Events, str], str],
    result: str,
    fixed_noise_seed: int | None = None,
) -> tuple[Any, str]:
    """Reserve, release once, and close the entry with the hash of what is said about it.

    ``tell(value, events, entry)`` gives the text that leaves; the entry is closed with its SHA-256
    under the name ``result``. Returns the released value and the text. Raises ``BudgetExceeded``
    before anything is drawn.
    """
    events = charge.events(mechanism)
    with charge.reserve(ledger, events) as reservation:
        released = release_once(
            mechanism,
            records,
            query,
            adjacency=charge.adjacency,
            unit=charge.unit,
            noise=charge.noise,
            on_charge=reservation.on_charge,
            fixed_noise_seed=fixed_noise_seed,
        )
        text = tell(released.value, released.events, reservation.entry_id)
        reservation.commit({result: sha256(text.encode()).hexdigest()})
    return released.value, text
