"""Faults in whom a budget protects: the door, the fork check, facts of rows, blocks that are read,
and publicness.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

DOOR, FACTS, BLOCKS = (
    "tests/dpcore/accounting/test_one_door.py",
    "tests/tasks/ledger/test_facts.py",
    "tests/neighbours/test_blocks.py",
)
DRAWN, EVERY = "tests/neighbours/test_more_doors.py", "tests/neighbours/test_every_combination.py"
READING, NAMES, ASKS = (
    "tests/tasks/data/test_reading.py",
    "tests/tasks/ledger/test_second_names.py",
    "tests/dpcore/algorithms/test_asks.py",
)

PARTS, CHAMPION = "tests/tasks/readers/test_parts.py", "tests/tasks/retraining/test_champion.py"

MUTANTS = [
    # files that are charged are those that were read, once each
    Mutant(
        "tasks/readers/parts.py",
        "(facts.st_dev, facts.st_ino) if facts and facts.st_ino else part.resolve()",
        "part.resolve()",
        PARTS,
    ),
    Mutant(
        "tasks/readers/__init__.py",
        "    require_different(schema, files, skip_lines, mine)\n",
        "",
        PARTS,
    ),
    Mutant("tasks/readers/once.py", "if gone or identity(part) != before:", "if gone:", READING),
    Mutant("tasks/data/load.py", "    read.require()\n", "", READING),
    Mutant(
        "tasks/ledger/charge.py",
        "            self.as_read.require(self.files)",
        "            pass",
        READING,
    ),
    Mutant(
        "tasks/options/bounds.py",
        "run.data.open().read.require()",
        "pass",
        "tests/tasks/options/test_estimated_bounds.py",
    ),
    # weights that later runs may depend on, and the counts of two models
    Mutant(
        "tasks/record/stored.py",
        'one["hashes"].get(START) == digest',
        'one["hashes"].get("weights") == digest',
        CHAMPION,
    ),
    Mutant("tasks/record/stored.py", "        if not self.start:", "        if False:", CHAMPION),
    Mutant(
        "tasks/options/noisy_metric.py",
        "wide = scale * sqrt(2.0)",
        "wide = scale",
        CHAMPION,
    ),
    Mutant(
        "tasks/options/noisy_metric.py",
        "for column in columns for side in (other, ~other)",
        "for column in columns for side in (other, other)",
        CHAMPION,
    ),
    # one door, one process, one form of noise
    Mutant("dpcore/errors.py", "    if here() != maker:", "    if here()[0] == 0:", DOOR),
    Mutant(
        "dpcore/accounting/budget.py", '        require_maker(self._maker, "a budget")\n', "", DOOR
    ),
    Mutant(
        "dpcore/accounting/limits.py",
        'was held\n        require_maker(self._maker, "an Allowance")',
        "was held",
        DOOR,
    ),
    Mutant("dpcore/noise.py", '        if name[:2] != "__":', '        if name == "normal":', DOOR),
    Mutant(
        "dpcore/mechanisms/laplace.py",
        "made = Laplace(sensitivity, sensitivity / epsilon).with_noise(noise)",
        "made = Laplace(sensitivity, sensitivity / epsilon)",
        DOOR,
    ),
    # facts of rows
    Mutant(
        "tasks/ledger/reader.py",
        "            fixed.require_same(facts, dataset.name)",
        "            pass",
        FACTS,
    ),
    Mutant(
        "tasks/ledger/reader.py",
        "        fixed = dataset.facts or chain.fixed_facts(connection, dataset.name)\n        if",
        "        fixed = dataset.facts\n        if",
        FACTS,
    ),
    Mutant(
        "tasks/ledger/facts.py",
        '"block_format": block.format if dated else None',
        '"block_format": None',
        FACTS,
    ),
    Mutant(
        "tasks/ledger/facts.py",
        "{mark for name in named for mark in _marks(schema, name)}",
        "set()",
        FACTS,
    ),
    Mutant(
        "tasks/ledger/verify.py",
        '        self._same_rows(record, dataset, body.get("facts"))\n',
        "",
        FACTS,
    ),
    Mutant(
        "tasks/ledger/ledger.py",
        '        target.require_delta((reading or {}).get("n"))\n',
        "",
        FACTS,
    ),
    Mutant(
        "flows/budgets.py",
        "    n = None if schema is None else schema.n()",
        "    n = None",
        FACTS,
    ),
    Mutant(
        "tasks/ledger/ledger.py",
        "            self._require_stated(target, facts)\n",
        "            pass\n",
        FACTS,
    ),
    Mutant(
        "tasks/ledger/chain.py",
        "if look_of(name) == look_of(dataset)",
        "if name == dataset",
        FACTS,
    ),
    Mutant(
        "tasks/ledger/verify.py",
        '            "facts" in body\n            and (name',
        '            "fact" in body\n            and (name',
        FACTS,
    ),
    # what is read is what is charged
    Mutant(
        "tasks/data/rows.py",
        "    if where is not None and wanted.blocks is not None:\n        places",
        "    if where is not None and wanted.blocks is not None and not split:\n        places",
        BLOCKS,
    ),
    Mutant(
        "tasks/data/load.py",
        "blocks, mine = wanted.blocks, mine_of(schema, wanted.blocks)",
        "blocks, mine = wanted.blocks, None",
        BLOCKS,
    ),
    Mutant(
        "tasks/data/rows.py",
        "    if aside is not None and not wanted.test:",
        "    if aside is not None and False:",
        READING,
    ),
    Mutant(
        "tasks/kinds/charge.py",
        '        blocks=rows.blocks or ("all",),',
        "        blocks=job.blocks,",
        READING,
    ),
    Mutant(
        "tasks/ledger/charge.py",
        "if others := sorted(set(owners) - {self.dataset}):",
        "if others := []:",
        READING,
    ),
    Mutant(
        "tasks/options/tune.py",
        "describe(varied(stored, values), job.schema)",
        'describe(varied(stored, values), job.schema.model_copy(update={"block": None}))',
        DRAWN,
    ),
    Mutant(
        "dpcore/train/search.py",
        "Composition(mechanisms, counts, setting",
        "Composition(mechanisms, tuple(1 for _ in counts), setting",
        DRAWN,
    ),
    Mutant(
        "dpcore/accounting/budget.py",
        "        return value\n\n    def affords",
        "        return value + 1e-9 * query(self._objective) if self._observers else value\n\n    "
        "def affords",
        DRAWN,
    ),
    Mutant("tasks/compare/folds.py", "        if secret is None:", "        if True:", DRAWN),
    Mutant("tasks/compare/charge.py", "((index, each * count),)", "((index, each),)", EVERY),
    # refusals that one record could decide over
    Mutant(
        "tasks/compare/folds.py",
        "protocol.folds == 1 or not job.public:",
        "protocol.folds == 1:",
        DRAWN,
    ),
    Mutant(
        "tasks/compare/folds.py", "None if job.public else Adjacency.ADD_REMOVE)", "None)", DRAWN
    ),
    Mutant(
        "tasks/readers/text.py",
        "if mine is not None and not _first_fits(",
        "if False and not _first_fits(",
        BLOCKS,
    ),
    Mutant("tasks/readers/chunk.py", "        if k in read:\n", "        if k >= 0:\n", BLOCKS),
    Mutant(
        "tasks/readers/arrow.py",
        "        batch.validate(full=True)",
        "        len(batch)",
        BLOCKS,
    ),
    Mutant(
        "tasks/readers/arrow.py",
        "wanted = None if mine is None or not marks else",
        "wanted = None if True else",
        BLOCKS,
    ),
    Mutant(
        "tasks/readers/declared.py",
        "inside = bool(mine(",
        "inside = True or bool(mine(",
        BLOCKS,
    ),
    # people in a charged profile
    Mutant(
        "tasks/profile/private.py",
        "else 1.0 + rows**2 * (columns + 1.0)",
        "else columns + 2.0",
        EVERY,
    ),
    Mutant(
        "dpcore/preprocess/estimate.py",
        "return Exponential(float(self.rows), self.rows * self.noise_multiplier",
        "return Exponential(1.0, self.noise_multiplier",
        "tests/neighbours/test_doors.py",
    ),
    Mutant(
        "tasks/data/__init__.py",
        "cumcount().to_numpy() < self.rows_per_user",
        "cumcount().to_numpy() >= 0",
        "tests/tasks/profile/test_profile_command.py",
    ),
    Mutant(
        "dpcore/train/planning.py",
        ' and unit != "user"',
        "",
        "tests/tasks/retraining/test_users.py",
    ),
    Mutant(
        "tasks/data/rows.py",
        'moment.tz_convert("UTC")).strftime',
        "moment.tz_localize(None)).strftime",
        DRAWN,
    ),
    # publicness
    Mutant(
        "tasks/ledger/reader.py",
        "limited & {records[0].dataset, *ledger_facts.read_as(connection, marks)}",
        "limited & {records[0].dataset}",
        NAMES,
    ),
    Mutant(
        "tasks/schema/model.py",
        "        if self.drafted is not None and not",
        "        if self.drafted is None and not",
        "tests/tasks/profile/test_profile_command.py",
    ),
    # what an algorithm asks of records
    Mutant(
        "dpcore/algorithms/base.py",
        "    if lacking := sorted(algorithm.asks - OFFERED[kind]):",
        "    if lacking := []:",
        ASKS,
    ),
    Mutant(
        "dpcore/objective/users.py",
        "        return self.rows, 1.0 / self.rows_per_user",
        "        return self.rows, 1.0",
        ASKS,
    ),
]
