"""Faults in networks: norms, cuts, overflow, start, refusals."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

N, TN = "dpcore/network", "tests/dpcore/network"

MEMORY = "tests/tasks/kinds/network/test_memory.py"

MUTANTS = [
    Mutant("dpcore/network/models.py", "if side > MOST_SIDE:", "if False:", f"{TN}/test_models.py"),
    Mutant(
        "dpcore/network/models.py", "(9 * channels + 1) +", "9 * channels +", f"{TN}/test_models.py"
    ),
    Mutant(
        "dpcore/network/network.py", "max(records * made, *(", "max(0, *(", f"{TN}/test_models.py"
    ),
    Mutant("dpcore/network/network.py", "spec.copies * held)", "held)", MEMORY),
    Mutant("tasks/training/__init__.py", "    if asked <= there:", "    if True:", MEMORY),
    Mutant("tasks/training/__init__.py", "    if here:\n", "    if True:\n", MEMORY),
    Mutant(
        "dpcore/network/network.py",
        "        refuse_coarse_products()\n        return",
        "        return",
        f"{TN}/test_rounding.py",
    ),
    Mutant(
        "dpcore/network/clipping.py",
        "(inner + (1.0 if",
        "(inner + (0.0 if",
        f"{TN}/test_gradients.py",
    ),
    Mutant(
        "dpcore/network/clipping.py",
        "dim=1, out=norms[rows]",
        "dim=1, out=norms[:0].clone()",
        f"{TN}/test_gradients.py",
    ),
    Mutant(
        "dpcore/network/clipping.py",
        "total + lengths(self.bias)",
        "total",
        f"{TN}/test_gradients.py",
    ),
    Mutant(
        "dpcore/network/passes.py",
        "clip_norm * (1.0 - MARGIN[dtype]) /",
        "clip_norm /",
        f"{TN}/test_rounding.py",
    ),
    Mutant(
        "dpcore/network/passes.py",
        "clamp_min(1e-30)).clamp_max(1.0)",
        "clamp_min(1e-30))",
        f"{TN}/test_gradients.py",
    ),
    Mutant(
        "dpcore/network/passes.py",
        "None if bool(torch.isfinite(norms).all()) else torch.isfinite(norms)",
        "None",
        f"{TN}/test_gradients.py",
    ),
    Mutant(
        "dpcore/network/clipping.py",
        'reduction="sum") / copies\n            slopes',
        'reduction="mean") / copies\n            slopes',
        f"{TN}/test_gradients.py",
    ),
    Mutant(
        "dpcore/network/layers.py",
        "found if len(set(places))",
        "found if True or len(set(places))",
        f"{TN}/test_gradients.py",
    ),
    Mutant(
        "dpcore/network/network.py",
        "keys = keys_of(x, y)",
        "keys = np.arange(len(x), dtype=np.uint64)",
        f"{TN}/test_rounding.py",
    ),
    Mutant(
        "dpcore/network/passes.py",
        "stop - start <= most or bit < 0",
        "True",
        f"{TN}/test_rounding.py",
    ),
    Mutant(
        "dpcore/network/passes.py",
        "share.where(sound, 0.0)",
        "share",
        f"{TN}/test_gradients.py",
    ),
    Mutant(
        "dpcore/network/network.py",
        "np.asarray(found[self._places])",
        "found",
        f"{TN}/test_gradients.py",
    ),
    Mutant(
        "dpcore/network/scattering.py",
        "_unit(x - self.centre.to(x.dtype))",
        "x - self.centre.to(x.dtype)",
        f"{TN}/test_images.py",
    ),
    Mutant(
        "dpcore/network/models.py",
        "*before_layers(spec))(strokes",
        ")(strokes",
        f"{TN}/test_images.py",
    ),
    Mutant(
        "dpcore/network/passes.py",
        "LEAST, WHOLE = 16, 64",
        "LEAST, WHOLE = 16, 1",
        f"{TN}/test_last_bits.py",
    ),
    Mutant(
        "dpcore/network/clipping.py",
        "= total + hidden *",
        "= total + 0.0 *",
        f"{TN}/test_rounding.py",
    ),
    Mutant(
        "dpcore/network/passes.py",
        "(1.0 - (k + 3) * limits",
        "(1.0 - 0.0 * limits",
        f"{TN}/test_rounding.py",
    ),
    Mutant(
        "dpcore/network/passes.py",
        "square() + k * limits.tiny",
        "square()",
        f"{TN}/test_rounding.py",
    ),
    Mutant(
        "dpcore/network/passes.py",
        "torch.float64 if k > LONG else None",
        "None",
        f"{TN}/test_rounding.py",
    ),
    Mutant(
        "dpcore/network/network.py",
        "clip * (1.0 - MARGIN[self.network.dtype])",
        "clip * 1.0",
        f"{TN}/test_rounding.py",
    ),
    Mutant(
        "dpcore/network/network.py", "self._theta += self._start", "pass", f"{TN}/test_gradients.py"
    ),
    Mutant("dpcore/network/network.py", "self.added.start()", "pass", f"{TN}/test_gradients.py"),
    Mutant(
        "dpcore/network/network.py",
        "posinf=inf), clip)",
        "posinf=inf), inf)",
        f"{TN}/test_gradients.py",
    ),
    Mutant(
        "dpcore/network/refusals.py",
        "close(scores, alone",
        "close(scores, scores",
        f"{TN}/test_models.py",
    ),
    Mutant(
        "dpcore/network/refusals.py",
        "not torch.equal(buffer, before[name])",
        "False",
        f"{TN}/test_models.py",
    ),
    Mutant(
        "dpcore/network/models.py",
        "isinstance(found, type) and issubclass",
        "True or issubclass",
        f"{TN}/test_models.py",
    ),
    Mutant(
        "dpcore/network/models.py", "torch.manual_seed(spec.seed)", "pass", f"{TN}/test_models.py"
    ),
    Mutant(
        "dpcore/network/network.py",
        "            self.sums.add(self.moved(records[rows], order), clip_norm, leaves, self.added)",
        "            moved, copies = self.moved(records[rows], order), self.spec.copies\n"
        "            for k in range(copies):\n"
        "                part = Records(moved.x[k::copies], moved.y, moved.keys)\n"
        "                self.sums.add(part, clip_norm, leaves, self.added)",
        f"{TN}/test_replay.py",
    ),
    Mutant(
        "dpcore/network/clipping.py",
        "/ copies\n            slopes",
        "\n            slopes",
        f"{TN}/test_images.py",
    ),
    Mutant(
        "dpcore/network/images.py",
        "first = (records.keys % np.uint64(self.moves)).astype(np.int64)",
        "first = np.arange(n)",
        f"{TN}/test_images.py",
    ),
    Mutant(
        "dpcore/network/layers.py",
        "d / lengths_of(layer.weight)",
        "d",
        f"{TN}/test_images.py",
    ),
    Mutant(
        "dpcore/network/clipping.py",
        "            if isinstance(layer, STANDARD):\n",
        "            if False:\n",
        f"{TN}/test_gradients.py",
    ),
    Mutant(
        "dpcore/network/layers.py",
        "        return not bool(layer.affine)",
        "        return True",
        f"{TN}/test_models.py",
    ),
    # products whose last bits do not depend on a record's place
    Mutant(
        "dpcore/network/layers.py",
        "more = -inputs % ALIGNED, -outputs % ALIGNED",
        "more = 0 * inputs, 0 * outputs",
        f"{TN}/test_last_bits.py",
    ),
    Mutant(
        "dpcore/network/network.py",
        'spec.precision if self.closed else "double"',
        "spec.precision",
        f"{TN}/test_last_bits.py",
    ),
    Mutant(
        "dpcore/network/clipping.py",
        "a, d = whole(self.a), whole(self.d)",
        "a, d = self.a, self.d",
        f"{TN}/test_last_bits.py",
    ),
    Mutant(
        "dpcore/network/clipping.py",
        "if outputs % ALIGNED:",
        "if outputs < 0:",
        f"{TN}/test_last_bits.py",
    ),
]
