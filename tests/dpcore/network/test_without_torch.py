"""The extra is optional: nothing else imports torch, and asking for a network says what to
install.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from dpcore.errors import InputError
from dpcore.network import spec as network_spec
from dpcore.network.spec import NetworkSpec

# As on a machine where torch is not installed.
BLOCK = (
    "import importlib.util as util\nfind = util.find_spec\nutil.find_spec = lambda name, *rest: "
    "None if name == 'torch' else find(name, *rest)\n"
)


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.parametrize(
    "modules",
    [
        "dpcore, dpcore.train, dpcore.algorithms, dpcore.network.spec",
        "flows.cli, tasks.training, tasks.training",
    ],
)
def test_nothing_imports_torch_before_a_network_is_built(modules: str) -> None:
    done = python(
        f"import sys\nimport {modules}\nprint('torch' in sys.modules, 'safetensors' in sys.modules)"
    )
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_without_torch_a_network_says_what_to_install() -> None:
    done = python(
        BLOCK + "from dpcore.network.spec import NetworkSpec\n"
        "try:\n    NetworkSpec(inputs=4, outputs=2).build()\nexcept Exception as error:\n    "
        "print(type(error).__name__, error)\n"
    )
    assert (
        "InputError Expected the extra nn" in done.stdout
        and "pip install 'dpflows[nn]'" in done.stdout
    ), done.stderr


def test_without_torch_the_configuration_says_so_before_a_file_is_opened() -> None:
    done = python(
        BLOCK + "from tasks.config import parse_config\nfrom tasks.training import prepare\n"
        "config = parse_config({'data': {'name': 'mnist', 'path': 'nowhere'}, 'model': {'kind': "
        "'mlp'}})\ntry:\n    prepare(config)\nexcept Exception as error:\n    "
        "print(type(error).__name__, error)\n"
    )
    assert "InputError model: Expected the extra nn" in done.stdout, done.stderr


def test_the_packages_of_the_extra_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_spec, "PACKAGES", ("numpy", "no_such_package"))
    with pytest.raises(InputError, match=r"got no no_such_package; pip install"):
        network_spec.require_torch()


def test_a_network_is_described_without_torch() -> None:
    spec = NetworkSpec(inputs=4, outputs=2)
    assert NetworkSpec(**spec.to_dict()) == spec
