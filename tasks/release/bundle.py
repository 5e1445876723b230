"""Bundles as files: written to a folder, read from a folder or a zip of it. Nothing in them is code
that runs.
"""

from __future__ import annotations

import io
import json
import shutil
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from hashlib import sha256
from itertools import islice
from math import prod
from pathlib import Path, PurePosixPath
from tempfile import mkdtemp

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpcore.errors import InputError
from tasks.release.keys import public_pem, sign
from tasks.release.manifest import MANIFEST, OPENSSF, REQUIRED, SIGNATURE, File, Manifest
from tasks.release.openssf import seal

Problem = tuple[str, str]  # (name of the check, what is wrong)

LARGEST = 1 << 30
LARGEST_TEXT = 4 << 20  # manifest and signature, which are read before anything is known about them
MOST_FILES = 200
# a README.md or config.json is in many folders
OWN = tuple(name for name in REQUIRED if "/" in name)


HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
MOST_ARRAYS = 100


class UnreadableBundle(InputError):
    """Something stands where a bundle should, and it cannot be read as one: whoever made it is not
    to be trusted.
    """

    exit_code = 4


class Bundle(Mapping[str, bytes]):
    """Files by their relative names; the sizes are known, and a file is read when it is asked
    for.
    """

    def __init__(self, sizes: Mapping[str, int], read: Callable[[str], bytes]) -> None:
        self.sizes = dict(sizes)
        self._read = read
        self._kept: dict[str, bytes] = {}

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Bundle:
        """Files that are in memory already."""
        if isinstance(files, Bundle):
            return files
        return cls({name: len(data) for name, data in files.items()}, files.__getitem__)

    def __getitem__(self, name: str) -> bytes:
        if name not in self.sizes:
            raise KeyError(name)
        if name not in self._kept:
            self._kept[name] = self._read(name)
        return self._kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)


def checksums(files: Mapping[str, bytes]) -> dict[str, File]:
    return {
        name: File(sha256=sha256(data).hexdigest(), bytes=len(data))
        for name, data in sorted(files.items())
    }


def require_place(folder: Path, name: str, version: str | None = None) -> Path:
    """The absolute folder that a bundle of ``name`` may be written to: a new or empty one, or an
    earlier try of it.

    Nothing else is ever removed. Raises ``InputError``.
    """
    linked = folder.is_symlink()
    folder = folder.resolve()
    if not folder.name or linked or (folder.exists() and not folder.is_dir()):
        raise InputError(f"Expected a folder for the bundle, got {folder}; name a new folder.")
    if folder.is_dir() and any(folder.iterdir()):
        held = _held(folder)
        if held is None:
            raise InputError(
                f"Expected a new or empty folder for the bundle, got {folder} with other files; "
                "name another."
            )
        if held.name != name or version not in (None, held.version):
            raise InputError(
                f"Expected a new or empty folder for the bundle, got {folder}, which holds "
                f"{held.name}@{held.version}; name another."
            )
    return folder


def _held(folder: Path) -> Manifest | None:
    """The manifest of the bundle in ``folder`` where it holds that bundle's files and nothing
    else.
    """
    try:
        found = open_bundle(folder)
        manifest = Manifest.model_validate_json(found[MANIFEST])
    except (ValueError, KeyError, RecursionError):  # an InputError is a ValueError
        return None
    return manifest if set(found) <= {*manifest.files, MANIFEST, SIGNATURE, OPENSSF} else None


def write_bundle(
    folder: Path,
    manifest: Manifest,
    files: Mapping[str, bytes],
    key: Ed25519PrivateKey,
    openssf: EllipticCurvePrivateKey | None = None,
) -> None:
    """Write all files beside ``folder``, then move them there at once; ``openssf`` signs all of
    them too. Raises ``InputError`` where that cannot be.
    """
    folder = require_place(folder, manifest.name, manifest.version)
    if openssf is not None:
        named = public_pem(openssf.public_key())
        manifest = manifest.model_copy(update={"openssf": named})
    text = manifest.to_json()
    contents = {**files, MANIFEST: text.encode(), SIGNATURE: sign(key, text.encode()).encode()}
    if openssf is not None:
        contents[OPENSSF] = seal(contents, manifest, openssf).encode()
    draft: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(mkdtemp(prefix=f".{folder.name[:60]}.", dir=folder.parent))
        (draft / "new").mkdir()
        for name, data in contents.items():
            (draft / "new" / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / "new" / name).write_bytes(data)
        if folder.exists():
            folder.rename(draft / "old")
        (draft / "new").rename(folder)
    except OSError as error:
        if draft is not None and (draft / "old").exists() and not folder.exists():
            (draft / "old").rename(folder)
        raise InputError(
            f"Expected a folder for the bundle, got {folder}: {error.strerror}; name another."
        ) from error
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)


def read_bundle(path: Path) -> dict[str, bytes]:
    """All files by their relative names. Raises ``InputError`` for what is no bundle or is too
    large to be one.
    """
    return dict(open_bundle(path))


def open_bundle(path: Path) -> Bundle:
    """The bundle at ``path``, with the sizes of its files; none is read yet.

    Raises ``InputError`` where there is none, ``UnreadableBundle`` for one that is too large or
    holds odd things.
    """
    if path.is_dir():
        found = _folder(path)
    elif path.is_file() and zipfile.is_zipfile(path):
        found = _zip(path)
    else:
        raise InputError(
            f"Expected a bundle (a folder, or a zip of it), got {str(path)!r}; correct the path."
        )
    if len(found) > MOST_FILES or sum(found.sizes.values()) > LARGEST:
        raise UnreadableBundle(
            f"Expected a bundle of at most {MOST_FILES} files and 1 GiB, got more in {path}."
        )
    return found if MANIFEST in found else _without_top(found)


def _without_top(found: Bundle) -> Bundle:
    """The bundle in the one folder that an archive holds; as it is where there is no such one."""
    inner = {PurePosixPath(name).parts[0] for name in found}
    if len(inner) != 1 or f"{(top := inner.pop())}/{MANIFEST}" not in found:
        return found
    sizes = {name.removeprefix(f"{top}/"): size for name, size in found.sizes.items()}
    return Bundle(sizes, lambda name: found[f"{top}/{name}"])


def _looks_like_one(root: Path) -> bool:
    """Whether a folder, or the only folder in it, has a file of a bundle: a tampered one need not
    have its manifest.
    """
    inner = list(islice(root.iterdir(), 2))
    places = [root, *(inner if len(inner) == 1 else [])]
    return any((place / name).is_file() for place in places for name in (MANIFEST, SIGNATURE, *OWN))


def _folder(root: Path) -> Bundle:
    if not _looks_like_one(root):
        raise InputError(
            f"Expected a bundle (a folder, or a zip of it), got the folder {str(root)!r}, which "
            f"has no {MANIFEST}; name the folder that `dpflows release` wrote."
        )
    found = list(islice(root.rglob("*"), 2 * MOST_FILES + 1))
    # files and their folders; not to walk a disk for an answer that is known
    if len(found) > 2 * MOST_FILES:
        raise UnreadableBundle(
            f"Expected a bundle of at most {MOST_FILES} files and 1 GiB, got more in {root}."
        )
    sizes = {}
    for path in sorted(found):
        name = path.relative_to(root).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise UnreadableBundle(
                f"Expected plain files in a bundle, got the link {name!r}; do not trust it."
            )
        if path.is_file():
            sizes[name] = path.stat().st_size
    return Bundle(sizes, lambda name: _bytes(root / name, sizes[name]))


def _bytes(path: Path, size: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(size + 1)
    except OSError as error:
        raise UnreadableBundle(
            f"Expected a bundle that can be read, got {path}: {error.strerror}."
        ) from None


def _check_item(item: zipfile.ZipInfo, seen: Container[str], path: Path) -> None:
    """Refuse a name that is not plain or not the only one, and what is encrypted."""
    name = item.filename
    plain = ".." not in PurePosixPath(name).parts and not name.startswith("/") and "\\" not in name
    if name in seen or not plain:
        raise UnreadableBundle(f"Expected plain names in a bundle, got {name!r}; do not trust it.")
    if item.flag_bits & 1:
        raise UnreadableBundle(
            f"Expected a bundle that can be read, got an encrypted archive {path}."
        )


def _zip(path: Path) -> Bundle:
    sizes: dict[str, int] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for item in archive.infolist():
                if not item.is_dir():
                    _check_item(item, sizes, path)
                    sizes[item.filename] = item.file_size
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        if isinstance(error, InputError):
            raise
        raise UnreadableBundle(
            f"Expected a bundle, got a damaged archive {path}: {error}; ask for it again."
        ) from None

    def read(name: str) -> bytes:
        try:
            with zipfile.ZipFile(path) as archive, archive.open(name) as file:
                return file.read(sizes[name] + 1)
        except (
            zipfile.BadZipFile,
            zlib.error,
            OSError,
            ValueError,
            RuntimeError,
            EOFError,
            KeyError,
        ) as error:
            raise UnreadableBundle(
                f"Expected a bundle, got a damaged archive {path}: {error}; ask for it again."
            ) from None

    return Bundle(sizes, read)


def manifest_of(found: Bundle) -> tuple[bytes, bytes]:
    """Manifest and signature as bytes, empty where missing; raises ``UnreadableBundle`` for one
    that is too large.
    """
    for name in (MANIFEST, SIGNATURE, OPENSSF):
        if found.sizes.get(name, 0) > LARGEST_TEXT:
            raise UnreadableBundle(
                f"Expected a {name} of at most {LARGEST_TEXT >> 20} MiB, got a larger one."
            )
    return found.get(MANIFEST, b""), found.get(SIGNATURE, b"")


def plain_json(text: bytes) -> object:
    """JSON of a file; raises ``ValueError`` also for one that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


def weight_problems(data: bytes) -> Iterator[Problem]:
    try:
        _require_shapes(data)
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            numbers = [arrays[name] for name in arrays.files]
        if not all(
            np.issubdtype(one.dtype, np.floating) and np.isfinite(one).all() for one in numbers
        ):
            yield "weights_not_finite", "a weight is not a finite number"
    except (ValueError, OSError, KeyError, EOFError):
        yield "weights_unreadable", "the weights are not plain arrays"
    except Exception as error:  # zipfile and zlib raise their own kinds for damaged archives
        yield "weights_unreadable", f"the weights are damaged ({type(error).__name__})"


def _require_shapes(data: bytes) -> None:
    """Raise ``ValueError`` for an archive whose arrays would be larger than any model: shapes
    before numbers.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if (
            len(archive.infolist()) > MOST_ARRAYS
            or sum(item.file_size for item in archive.infolist()) > LARGEST
        ):
            raise ValueError("the weights are too large")
        for item in archive.infolist():
            with archive.open(item) as file:
                read = HEADERS[np.lib.format.read_magic(file)]
                shape, _, dtype = read(file)
                if prod(shape) * dtype.itemsize > item.file_size:
                    raise ValueError("the weights say that they are larger than their file")
