"""Whether torch is there: asked before a network is built."""

from __future__ import annotations

from importlib.util import find_spec

from dpcore.errors import InputError

PACKAGES = ("torch", "safetensors")


def require_torch() -> None:
    """Raise ``InputError`` that says what to install unless torch and safetensors can be imported."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise InputError(
            f"Expected the extra nn for a network, got no {' and no '.join(missing)}; pip install 'dpflows[nn]'."
        )
