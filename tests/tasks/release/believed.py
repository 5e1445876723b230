"""Everything that audit, release and verify believe, with who vouches for it.

A file, tag, row or field that a step acts on stands here once. ``by`` says why it can be believed:
the hash in the ledger's commit record, the signature of the bundle, or that it is derived again
from something that has one of these. ``SHOWN`` things are for people alone: no step acts on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class By(StrEnum):
    """Who vouches."""

    COMMIT = "hash in the ledger's commit record"
    LIST = "hash in the list of files, whose own hash is in the commit record"
    CHAIN = "hash chain of the ledger, and the head that the signed manifest holds"
    NOTED = "a note in the ledger that it is kept, and the head that the signed manifest holds"
    SIGNATURE = "signature of the manifest, which holds the file's checksum"
    DERIVED = "derived again"
    PLANNED = (
        "derived again: the stored configuration is planned again, and statement and mechanisms "
        "compared with it"
    )
    SHOWN = "nobody: shown to people, compared where a step shows it too"
    FINDS = "nobody: a rule that reads it can only add a finding"
    OURS = (
        "nobody: decides where to look or what is done next, and what is found there is believed "
        "by its own reason"
    )
    UNREAD = "nobody: no step reads it"


@dataclass(frozen=True, slots=True)
class Believed:
    """``where`` is a path or a name, ``what`` the step takes from it, ``by`` who vouches for it."""

    kind: str  # run, model, mlflow, bundle, ledger or home
    where: str
    what: str
    by: By


RUN_FILES = (
    Believed("run", "config.json", "what was asked for", By.COMMIT),
    Believed("run", "privacy/statement.json", "guarantee, ledger entry, reasons", By.COMMIT),
    Believed("run", "privacy/statement.md", "what people read", By.COMMIT),
    Believed("run", "privacy/statement.html", "what people read", By.COMMIT),
    Believed("run", "privacy/mechanisms.json", "what was paid for", By.COMMIT),
    Believed("run", "privacy/curve.json", "the Rényi curve", By.COMMIT),
    Believed("run", "privacy/trace.json", "names and values of curves", By.COMMIT),
    Believed("run", "privacy/metrics.json", "metrics that may leave, of this training", By.COMMIT),
    Believed("run", "privacy/files.json", "which files the model has", By.COMMIT),
)
# What follows from configuration and data schema, not from a file alone: seen by ``release`` and
# ``audit --replan``.
PLAN = (
    Believed(
        "run", "mechanisms and their order", "that they are those of the configuration", By.PLANNED
    ),
    Believed(
        "run",
        "guarantee, parameters, facts of the data",
        "that they are those of the configuration",
        By.PLANNED,
    ),
    Believed(
        "home",
        "data schema",
        "n, bounds, levels; of the row facts the ledger has its own",
        By.PLANNED,
    ),
)
MODEL_FILES = (
    Believed("model", "artifacts/model/weights.npz", "the model", By.COMMIT),
    Believed("model", "artifacts/model/encoder.json", "preprocessing", By.COMMIT),
    Believed("model", "artifacts/model/model.json", "label, loss, network", By.COMMIT),
    Believed("model", "artifacts/model/state.safetensors", "parameters of a network", By.LIST),
    Believed("model", "scoring.py", "code that MLflow runs", By.LIST),
    Believed("model", "code/dpcore", "code that MLflow runs", By.LIST),
    Believed("model", "requirements.txt", "packages that a server installs", By.LIST),
    Believed("model", "MLmodel", "loader, folder of weights, signature", By.DERIVED),
    Believed("model", "conda.yaml", "packages that a server installs", By.DERIVED),
    Believed("model", "python_env.yaml", "packages that a server installs", By.DERIVED),
    Believed("model", "input_example.json", "an example without real rows", By.DERIVED),
    Believed("model", "serving_input_example.json", "an example without real rows", By.DERIVED),
)
MLFLOW = (
    Believed("mlflow", "runs.status", "that the training ended", By.DERIVED),
    Believed("mlflow", "tag dpflows.model", "which model is the run's", By.DERIVED),
    Believed("mlflow", "tag dpflows.ledger_entry", "which entry is the run's", By.DERIVED),
    Believed("mlflow", "tag dpflows.releasable", "whether it may leave", By.DERIVED),
    Believed("mlflow", "param privacy.epsilon", "the target", By.DERIVED),
    Believed("mlflow", "param privacy.delta", "the target", By.DERIVED),
    Believed("mlflow", "param privacy.adjacency", "the neighbours", By.DERIVED),
    Believed("mlflow", "param config.sha256", "the configuration", By.DERIVED),
    Believed("mlflow", "metric spent.epsilon", "what was spent", By.DERIVED),
    Believed("mlflow", "metric spent.delta", "what was spent", By.DERIVED),
    Believed("mlflow", "metric released.accuracy", "a released metric", By.DERIVED),
    Believed("mlflow", "logged_models.artifact_location", "where the model lies", By.DERIVED),
    Believed("mlflow", "logged_models.source_run_id", "whose the model is", By.DERIVED),
    Believed("mlflow", "logged_models.status", "that the model is whole", By.DERIVED),
    Believed("mlflow", "model_versions.source", "which model a version is", By.DERIVED),
    Believed("mlflow", "model_versions.storage_location", "which folder is served", By.DERIVED),
    Believed("mlflow", "model_versions.run_id", "which run a version is", By.DERIVED),
    Believed("mlflow", "alias released", "which version is in front", By.DERIVED),
    Believed("mlflow", "alias previous", "nothing: which version was in front before", By.SHOWN),
    Believed("mlflow", "tag dpflows.run_id", "which run a version is", By.DERIVED),
    Believed("mlflow", "tag epsilon", "the price of a release", By.DERIVED),
    Believed(
        "mlflow",
        "tag dpflows.bundle",
        "where to look for a bundle, which is believed by its signature",
        By.SHOWN,
    ),
    Believed("mlflow", "tag dpflows.serial", "nothing but the alias's age", By.SHOWN),
    # The gate compares it and the manifest says ``public data``; no private record is behind it, so
    # no promise is.
    Believed(
        "mlflow",
        "metric of public data",
        "quality on rows that anybody has, as the operator shows it",
        By.SHOWN,
    ),
)
BUNDLE_FILES = (
    Believed(
        "bundle",
        "manifest.json",
        "name, version, run, price, approval, ledger's head",
        By.SIGNATURE,
    ),
    Believed("bundle", "signature.json", "who released", By.SIGNATURE),
    Believed("bundle", "model.sig", "nothing beside: it is made again from the files", By.DERIVED),
    Believed("bundle", "model/model.onnx", "nothing: other runtimes read it", By.SIGNATURE),
    Believed("bundle", "README.md", "what people read", By.SIGNATURE),
    Believed("bundle", "terms.svg", "what people see of the terms", By.SIGNATURE),
    Believed("bundle", "config.json", "what was asked for", By.COMMIT),
    Believed("bundle", "model/weights.npz", "the model", By.COMMIT),
    Believed("bundle", "model/encoder.json", "preprocessing", By.COMMIT),
    Believed("bundle", "model/model.json", "label and loss", By.COMMIT),
    Believed("bundle", "privacy/statement.json", "the guarantee", By.COMMIT),
    Believed("bundle", "privacy/statement.md", "what people read", By.COMMIT),
    Believed("bundle", "privacy/statement.html", "what people read", By.COMMIT),
    Believed("bundle", "privacy/mechanisms.json", "what was paid for", By.COMMIT),
    Believed("bundle", "privacy/metrics.json", "released metrics", By.COMMIT),
    Believed("bundle", "privacy/evaluation.md", "what reviewers read", By.SIGNATURE),
    Believed("bundle", "privacy/registry.json", "what a registry is told", By.SIGNATURE),
    Believed("bundle", "privacy/tuning.json", "the runs in the price", By.SIGNATURE),
)
HOME = (Believed("home", "releases/NAME/front.json", "which version is in front", By.SIGNATURE),)
LEDGER = (
    Believed("ledger", "opened", "whether data are private, and their budget", By.CHAIN),
    Believed("ledger", "reserved", "what was charged, on which blocks", By.CHAIN),
    Believed("ledger", "committed", "hashes of the run's files", By.CHAIN),
    Believed("ledger", "last record", "that nothing was taken off the end", By.CHAIN),
    Believed("ledger", "head file", "that nothing which was on disk vanished", By.NOTED),
    Believed("ledger", "events", "mechanisms of an entry", By.CHAIN),
    Believed("ledger", "balances", "what is spent", By.CHAIN),
)
TABLE = (*RUN_FILES, *PLAN, *MODEL_FILES, *MLFLOW, *BUNDLE_FILES, *HOME, *LEDGER)


@dataclass(frozen=True, slots=True)
class Fields:
    """Fields of a file, record, table or store that the same reason stands for; ``*`` is every
    other one.
    """

    holder: str
    by: By
    names: str

    @property
    def each(self) -> tuple[str, ...]:
        return tuple(self.names.split())


STATEMENT_FIELDS = (
    Fields("statement.json", By.PLANNED, """guarantee.unit guarantee.adjacency guarantee.epsilon guarantee.delta
        guarantee.target_epsilon guarantee.accountant guarantee.conversion training.algorithm training.parameters
        training.preset training.loss training.l1 training.l2 data.name data.public data.public_n data.n_kind
        data.dimension data.norm_bound ledger.dataset ledger.blocks mechanisms"""),
    Fields("statement.json", By.DERIVED, """renyi.orders renyi.curve renyi.best_order renyi.epsilon mechanisms_sha256
        config_sha256 weights_sha256 releasable reasons"""),
    Fields("statement.json", By.CHAIN, "ledger.entry ledger.head"),
    Fields("statement.json", By.COMMIT, """schema_version created samplers sensitivity training.reason data.bounds
        released not_released noise noise_source ledger.spent_units ledger.order ledger.limit_units limits trust_model
        composition tuning versions lock_sha256 git_commit"""),
)  # fmt: skip
# The configuration is planned again as a whole; what is no part of a plan is what was typed, by its
# hash.
CONFIG_FIELDS = (
    Fields("config.json", By.PLANNED, """data.name data.blocks data.period preprocess.normalise preprocess.numeric
        preprocess.intercept objective.loss objective.loss_parameters objective.l2 objective.l1 ranking.features
        ranking.scorer ranking.hidden ranking.activation model.kind model.hidden model.activation model.pool model.image
        model.standardise model.group_norm model.standard_weights model.upright model.shrink model.copies model.shift
        model.mirror model.centred model.path model.arguments privacy.epsilon privacy.delta privacy.adjacency privacy.conversion
        privacy.accountant privacy.noise select.method select.keep select.share select.clip_norm algorithm.name
        algorithm.preset tune.grid tune.trials.distribution tune.trials.mean tune.trials.eta tune.score.metric
        tune.score.share preprocess.crosses preprocess.cross_width evaluate.goal"""),
    Fields("config.json", By.COMMIT, """schema_version data.path data.test_path ranking.empty ranking.ties
        ranking.discount ranking.divisor ranking.relevant_from ranking.at ranking.map_at ranking.conventions
        ranking.gain ranking.short model.precision evaluate.baselines
        evaluate.release.metric evaluate.release.epsilon evaluate.release.against evaluate.subgroup evaluate.subgroup_least
        audit.canaries
        ledger.url tracking.experiment tracking.name seed unsafe_fixed_noise_seed engine.kind engine.address
        engine.workers engine.ca engine.cert engine.key"""),
)  # fmt: skip
RUN_FIELDS = (
    Fields("metrics.json", By.COMMIT, """counts epsilon ledger_entry mechanisms of of.config_sha256 of.training_entry
        of.weights_sha256 records schema_version standard_errors values"""),
    Fields("trace.json", By.COMMIT, "*"),
    Fields("curve.json", By.DERIVED, "orders curve best_order epsilon"),
    Fields("files.json", By.DERIVED, "files requirements schema_version"),
    Fields("MLmodel", By.DERIVED, "flavors metadata model_id run_id saved_input_example_info signature"),
    Fields("MLmodel", By.UNREAD, """artifact_path is_signature_from_type_hint mlflow_version model_size_bytes model_uuid
        prompts type_hint_from_example utc_time_created"""),
    # Written before the commit, which holds the hashes of the files beside it; the audit compares
    # what it led to.
    Fields("pending.json", By.CHAIN, "entry dataset hashes"),
    Fields("pending.json", By.DERIVED, "title delta draws params tags"),
    Fields("pending.json", By.OURS, "seconds owner"),
)  # fmt: skip
BUNDLE_FIELDS = (
    Fields("manifest.json", By.SIGNATURE, """schema_version name version created run_id price.unit price.adjacency
        price.epsilon price.delta price.conversion price.trials price.scope approval.who approval.when approval.note
        policy metrics.name metrics.value metrics.source metrics.standard_error previous files.sha256 files.bytes
        ledger.head ledger.seq ledger.hashes serial openssf"""),
    Fields("tuning.json", By.SIGNATURE, "schema_version trials"),
    Fields("front.json", By.SIGNATURE, "name version serial bundle approved_by approved_at "
                                       "schema_version"),
    Fields("signature.json", By.SIGNATURE, "algorithm public_key schema_version signature"),
    Fields("signature.json", By.DERIVED, "fingerprint"),
)  # fmt: skip
LEDGER_FIELDS = (
    Fields(
        "record",
        By.CHAIN,
        "seq kind dataset entry period fingerprint created_at body previous hash",
    ),
    Fields("opened", By.CHAIN, "adjacency blocks budget conversion delta epsilon facts order unit"),
    Fields("fixed", By.CHAIN, "facts"),
    Fields(
        "reserved", By.CHAIN, "blocks events facts files hashes owner read reading releases unit"
    ),
    Fields("reserved", By.DERIVED, "adjacency cost units"),
    Fields("drawn", By.CHAIN, ""),
    Fields("committed", By.CHAIN, "draws hashes by"),
    Fields("forfeited", By.CHAIN, "reason by draws"),
    Fields("cancelled", By.CHAIN, "reason"),
)
TAGS = (
    Fields("tag", By.DERIVED, "dpflows.model dpflows.ledger_entry dpflows.releasable "
                              "dpflows.run_id epsilon"),
    Fields("tag", By.OURS, "dpflows.bundle dpflows.serial dpflows.released_at dpflows.owner "
                           "dpflows.flow_run"),
    Fields("tag", By.FINDS, "mlflow.note.content"),
    Fields("tag", By.SHOWN, "dpflows.reasons dpflows.data dpflows.period dpflows.algorithm delta "
                            "approved_by approved_at"),
    Fields("param", By.DERIVED, "privacy.epsilon privacy.delta privacy.adjacency config.sha256"),
    Fields("tag", By.SHOWN, "dpflows.trainings"),  # the view of an experiment
    Fields("param", By.SHOWN, "privacy.unit privacy.accountant data.name data.n data.dimension"),
    # Of records of other tools, which nobody vouches for.
    Fields("setting", By.FINDS, """evaluated_on test_set evaluate.set bounds_source bounds data.bounds conversion
        privacy.conversion delta privacy.delta n_train n data.n privacy.adjacency sampler"""),
)  # fmt: skip
# Columns of MLflow's tables; tables that are not here are read by no step.
TABLES = (
    Fields("runs", By.DERIVED, "status lifecycle_stage end_time artifact_uri"),
    Fields("runs", By.OURS, "run_uuid experiment_id start_time"),
    Fields("runs", By.UNREAD, "name source_type source_name entry_point_name user_id deleted_time "
                              "source_version"),
    Fields("tags", By.DERIVED, "key value run_uuid"),
    Fields("params", By.DERIVED, "key value run_uuid"),
    Fields("metrics", By.DERIVED, "key value is_nan run_uuid"),
    Fields("metrics", By.OURS, "timestamp step"),
    Fields("latest_metrics", By.DERIVED, "key value is_nan run_uuid"),
    Fields("latest_metrics", By.UNREAD, "timestamp step"),
    Fields("logged_models", By.DERIVED, "model_id artifact_location source_run_id status "
                                        "lifecycle_stage"),
    Fields("logged_models", By.UNREAD, """experiment_id name creation_timestamp_ms last_updated_timestamp_ms model_type
        status_message"""),
    Fields("logged_model_params", By.FINDS, "model_id param_key"),
    Fields("logged_model_params", By.UNREAD, "experiment_id param_value"),
    Fields("logged_model_tags", By.FINDS, "model_id tag_key"),
    Fields("logged_model_tags", By.UNREAD, "experiment_id tag_value"),
    Fields("logged_model_metrics", By.FINDS, "model_id metric_name"),
    Fields("logged_model_metrics", By.UNREAD, """metric_timestamp_ms metric_step metric_value experiment_id run_id
        dataset_uuid dataset_name dataset_digest"""),
    Fields("inputs", By.FINDS, "source_type source_id destination_id input_uuid"),
    Fields("inputs", By.UNREAD, "destination_type step"),
    Fields("datasets", By.FINDS, "dataset_uuid"),
    Fields("datasets", By.DERIVED, """name digest dataset_source_type dataset_source dataset_schema
        dataset_profile"""),
    Fields("datasets", By.UNREAD, "experiment_id"),
    Fields("input_tags", By.DERIVED, "name value"),
    Fields("input_tags", By.FINDS, "input_uuid"),
    Fields("model_versions", By.DERIVED, "name version source storage_location run_id"),
    Fields("model_versions", By.UNREAD, """workspace creation_time last_updated_time description user_id current_stage
        run_link status status_message"""),
    Fields("model_version_tags", By.DERIVED, "name version key value"),
    Fields("model_version_tags", By.UNREAD, "workspace"),
    Fields("registered_models", By.OURS, "name"),
    Fields("registered_models", By.UNREAD, "workspace creation_time last_updated_time description"),
    Fields("registered_model_aliases", By.DERIVED, "name alias version"),
    Fields("registered_model_aliases", By.UNREAD, "workspace"),
    Fields("experiments", By.OURS, "experiment_id name artifact_location lifecycle_stage"),
    Fields("experiments", By.UNREAD, "workspace creation_time last_update_time"),
    Fields("experiment_tags", By.OURS, "key value experiment_id"),
)  # fmt: skip
FIELDS = (
    *STATEMENT_FIELDS,
    *CONFIG_FIELDS,
    *RUN_FIELDS,
    *BUNDLE_FIELDS,
    *LEDGER_FIELDS,
    *TAGS,
    *TABLES,
)
