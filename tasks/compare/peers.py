"""The part of a comparison that other libraries run: their settings, and which of them cannot be imported."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from shutil import which

from dpcore.errors import InputError
from tasks.compare.config import CompareConfig, Entry, PeerEntry
from tasks.compare.grid import LeftOut, Setting
from tasks.compare.jobs import Jobs, training_config
from tasks.compare.lines import ENCODED_AS
from tasks.compare.objectives import objectives_of
from tasks.config import AlgorithmSection
from tasks.peers.catalogue import Peer, PeerRun, check_problem, find_peer
from tasks.peers.process import PeerError, peer_process


def peer_settings(config: CompareConfig) -> tuple[list[Setting], list[LeftOut]]:
    """A setting for each library, data set, objective and epsilon under the adjacency of its proof.

    A library that cannot be imported is left out, with the reason and the way out; what it does not train, too. Raises
    ``InputError`` for unknown names and parameters, private data, and runners whose workers could not reach a library.
    """
    if config.peers is None:
        return [], []
    if config.runner != "threads":
        raise InputError(f"Expected runner: threads with peers, got {config.runner!r}; leave runner out.")
    settings: list[Setting] = []
    left_out: list[LeftOut] = []
    jobs = Jobs()
    for entry in config.peers.libraries:
        peer = find_peer(entry.name)
        parameters = peer.parameters(entry.parameters)
        try:
            found = started(peer, parameters, config)
        except PeerError as error:
            left_out.append(LeftOut(entry.shown, "all data", missing_words(peer, str(error))))
            continue
        more, missing = _settings(config, entry, found, jobs)
        settings += more
        left_out += missing
    return settings, left_out


def check_interpreter(config: CompareConfig) -> None:
    """Raise ``InputError`` for an interpreter that is named and cannot be run: without it nothing would be compared."""
    python = config.peers.python if config.peers is not None else None
    if python is not None and which(python) is None:
        raise InputError(
            f"Expected an interpreter that can be run, got peers.python={python!r}; correct the path, for example "
            "peers/bin/python, or leave it out for this one."
        )


def started(peer: Peer, parameters: dict[str, object], config: CompareConfig) -> PeerRun:
    """The library with the versions that its interpreter has; raises ``PeerError`` where it cannot be imported."""
    assert config.peers is not None
    versions = peer_process(config.peers.python, peer.name).versions
    return PeerRun(peer, parameters, config.peers.python, config.peers.timeout, versions)


def missing_words(peer: Peer, reason: str) -> str:
    """The reason and the way out: the extra where it is not installed, and an interpreter of its own in any case."""
    extra = "pip install 'dpflows[peers]', or " if "No module named" in reason else ""
    return (
        f"{reason}; {extra}give an interpreter of its own that can: `{peer.install}`, then "
        "`--set peers.python=peers/bin/python`."
    )


def _settings(config: CompareConfig, entry: PeerEntry, run: PeerRun, jobs: Jobs) -> tuple[list[Setting], list[LeftOut]]:
    found: list[Setting] = []
    missing: list[LeftOut] = []
    encoded = Entry(name=ENCODED_AS, preprocess=entry.preprocess)
    adjacencies = [a for a in config.privacy.adjacency if a is run.peer.adjacency] or config.privacy.adjacency[:1]
    wanted = [(data, objective) for data in config.data for objective in objectives_of(config, data)]
    for (data, objective), adjacency in product(wanted, adjacencies):
        base = training_config(config, data, objective, encoded, adjacency)
        job = jobs.of(base)
        if not job.public:
            raise InputError(
                f"Expected public data with peers, got {job.schema.name!r}: what another library releases is not "
                "charged to a ledger; leave peers out, or declare public: true."
            )
        try:
            check_problem(run.peer, job.problem)
        except InputError as error:
            missing.append(LeftOut(entry.shown, f"{job.schema.name}, {objective.loss}, {adjacency}", str(error)))
            continue
        for epsilon in config.epsilons:
            own = base.model_copy(
                update={
                    "privacy": base.privacy.model_copy(update={"epsilon": epsilon}),
                    "algorithm": AlgorithmSection(name=run.peer.name, **run.parameters),
                }
            )
            found.append(Setting(entry.shown, own, replace(job, config=own), True, peer=run))
    return found, missing
