"""Lines without privacy beside a comparison: the majority class or the mean of the label, and for each encoding of the
records the exact minimiser, since a ceiling has to see the same columns as what stands below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tasks.compare.config import MAJORITY, MEAN_LABEL, NON_PRIVATE, CompareConfig, CompareData, Entry
from tasks.compare.jobs import Jobs, training_config
from tasks.compare.variants import objectives_of
from tasks.config.train import AlgorithmSection, ObjectiveSection, PreprocessSection, RankingSection
from tasks.kinds import sessions, table
from tasks.kinds.base import Job
from tasks.schema import find_schema

# The rows that another library gets are encoded as for this algorithm, unless its entry names an encoding.
ENCODED_AS = "dp_sgd"

Encoding = tuple[PreprocessSection, RankingSection | None]


def lines(config: CompareConfig, data: CompareData, jobs: Jobs, used: Sequence[Job]) -> Iterator[tuple[str, Job]]:
    """(label, job) of every line, once for each objective; of rankers, which are compared across losses, for each loss.

    ``used`` are the private jobs: the exact minimiser is drawn on each of their encodings, and named by it.
    """
    ranking = sessions.is_ranking(find_schema(data.name))
    shared, own = list(objectives_of(config, data)), [job.config.objective for job in used]
    key: Callable[[ObjectiveSection], str] = (lambda o: o.loss) if ranking else ObjectiveSection.model_dump_json
    objectives = {key(each): each for each in ([*own, *shared] if ranking else [*shared, *own])}

    def made(objective: ObjectiveSection, entry: Entry) -> Job:
        return jobs.of(training_config(config, data, objective, entry, config.privacy.adjacency[0]))

    for name, objective in objectives.items():
        if not ranking:
            yield from simplest(objective, made)
        here = [job for job in used if key(job.config.objective) == name]
        if objective in shared and config.peers is not None:
            entries = [Entry(name=ENCODED_AS, preprocess=peer.preprocess) for peer in config.peers.libraries]
            here += [made(objective, entry) for entry in entries]
        words = [NON_PRIVATE, *([objective.loss] if ranking and len(objectives) > 1 else [])]
        entries = [Entry(name=NON_PRIVATE, preprocess=p, ranking=r) for p, r in encodings(here or used)]
        exact = [made(objective, entry) for entry in entries or [Entry(name=NON_PRIVATE)]]
        for job, encoding in zip(exact, encoding_names(exact), strict=True):
            yield " ".join([*words, encoding]), job


def simplest(objective: ObjectiveSection, made: Callable[[ObjectiveSection, Entry], Job]) -> Iterator[tuple[str, Job]]:
    """What any model has to beat: the majority class, or the mean of a regression's label.

    Without a constant column no weights stand for the majority class. A mean is no weights in any case.
    """
    majority = made(objective, Entry(name=MAJORITY))
    if majority.schema.label.kind == "regression":
        job = made(objective, Entry(name=NON_PRIVATE))
        yield MEAN_LABEL, replace(job, config=job.config.model_copy(update={"algorithm": MEAN_SECTION}))
    elif majority.problem.intercept:
        yield MAJORITY, majority


MEAN_SECTION = AlgorithmSection(name=MEAN_LABEL)


def encodings(used: Sequence[Job]) -> list[Encoding]:
    """The encodings of jobs, each once."""
    found = [encoding_of(job) for job in used]
    return [one for index, one in enumerate(found) if one not in found[:index]]


def encoding_of(job: Job) -> Encoding:
    """How the records of a job become columns, as sections that leave nothing to a rule of an algorithm.

    Of rankings also what their metrics mean, for a preset may have conventions of its own.
    """
    if job.ranker is None:
        return PreprocessSection(**table.encoding_of(job.config, job.problem.loss, job.schema)), None
    meant = sessions.conventions(job.config)
    section = job.config.ranking or RankingSection()
    return job.config.preprocess, section.model_copy(update={"empty": meant.empty, "divisor": meant.divisor})


def encoding_words(job: Job) -> str:
    """The encoding as a part of a label: "hats(8)", "minmax cap" or, of documents, "raw rank"."""
    model, encoder = job.ranker, job.encoder
    if model is not None:
        network = [] if model.scorer == "linear" else [f"{model.scorer}{list(model.hidden)}", model.activation]
        return " ".join([*model.features, *network])
    words = [encoder.numeric, *([] if encoder.normalise == "none" else [encoder.normalise])]
    return " ".join([*words, *([] if encoder.intercept else ["no intercept"])])


def encoding_names(exact: Sequence[Job]) -> list[str]:
    """``encoding_words`` of each job, with the conventions of the metrics where only these differ."""
    words = [encoding_words(job) for job in exact]
    meant = [sessions.conventions(job.config) for job in exact]
    return [
        word if words.count(word) == 1 else f"{word} (empty {one.empty}, {one.divisor}, ties {one.ties})"
        for word, one in zip(words, meant, strict=True)
    ]
