"""Bundles as files: written to a folder, read from a folder or a zip of it. Nothing in them is code that runs."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import islice
from pathlib import Path, PurePosixPath

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpcore.errors import InputError
from tasks.release.manifest import MANIFEST, REQUIRED, SIGNATURE, File, Manifest
from tasks.release.signature import sign

LARGEST = 1 << 30
MOST_FILES = 200
OWN = tuple(name for name in REQUIRED if "/" in name)  # a README.md or config.json is in many folders


def checksums(files: Mapping[str, bytes]) -> dict[str, File]:
    return {name: File(sha256=sha256(data).hexdigest(), bytes=len(data)) for name, data in sorted(files.items())}


def write_bundle(folder: Path, manifest: Manifest, files: Mapping[str, bytes], key: Ed25519PrivateKey) -> None:
    """Write all files beside ``folder``, then move them there at once. Raises ``InputError`` where that cannot be."""
    text = manifest.to_json()
    contents = {**files, MANIFEST: text.encode(), SIGNATURE: sign(key, text.encode()).encode()}
    draft = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        for name, data in contents.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_bytes(data)
        shutil.rmtree(folder, ignore_errors=True)
        draft.rename(folder)
    except OSError as error:
        raise InputError(f"Expected a folder for the bundle, got {folder}: {error.strerror}; name another.") from error


def read_bundle(path: Path) -> dict[str, bytes]:
    """All files by their relative names. Raises ``InputError`` for what is no bundle or is too large to be one."""
    if path.is_dir():
        items = _folder(path)
    elif path.is_file() and zipfile.is_zipfile(path):
        items = _zip(path)
    else:
        raise InputError(f"Expected a bundle (a folder, or a zip of it), got {str(path)!r}; correct the path.")
    files: dict[str, bytes] = {}
    total = 0
    for name, data in items:
        total += len(data)
        if total > LARGEST or len(files) >= MOST_FILES:
            raise InputError(f"Expected a bundle of at most {MOST_FILES} files and 1 GiB, got more in {path}.")
        files[name] = data
    if MANIFEST not in files:
        inner = {PurePosixPath(name).parts[0] for name in files}
        if len(inner) == 1 and f"{(top := inner.pop())}/{MANIFEST}" in files:
            return {name.removeprefix(f"{top}/"): data for name, data in files.items()}
    return files


def _looks_like_one(root: Path) -> bool:
    """Whether a folder, or the only folder in it, has a file of a bundle: a tampered one need not have its manifest."""
    inner = list(islice(root.iterdir(), 2))
    places = [root, *(inner if len(inner) == 1 else [])]
    return any((place / name).is_file() for place in places for name in (MANIFEST, SIGNATURE, *OWN))


def _folder(root: Path) -> Iterator[tuple[str, bytes]]:
    if not _looks_like_one(root):
        raise InputError(
            f"Expected a bundle (a folder, or a zip of it), got the folder {str(root)!r}, which has no {MANIFEST}; name"
            " the folder that `dpflows release` wrote."
        )
    found = list(islice(root.rglob("*"), 2 * MOST_FILES + 1))
    if len(found) > 2 * MOST_FILES:  # files and their folders; not to walk a disk for an answer that is known
        raise InputError(f"Expected a bundle of at most {MOST_FILES} files and 1 GiB, got more in {root}.")
    for path in sorted(found):
        if path.is_symlink():
            raise InputError(
                f"Expected plain files in a bundle, got the link {path.relative_to(root)}; do not trust it."
            )
        if path.is_file():
            if path.stat().st_size > LARGEST:
                raise InputError(f"Expected a bundle of at most 1 GiB, got a larger file {path.name}.")
            yield path.relative_to(root).as_posix(), path.read_bytes()


def _zip(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(item.file_size for item in archive.infolist()) > LARGEST:
                raise InputError(f"Expected a bundle of at most 1 GiB, got more in {path}.")
            seen: set[str] = set()
            for item in archive.infolist():
                if item.is_dir():
                    continue
                parts = PurePosixPath(item.filename).parts
                if item.filename in seen or ".." in parts or item.filename.startswith("/"):
                    raise InputError(f"Expected plain names in a bundle, got {item.filename!r}; do not trust it.")
                seen.add(item.filename)
                yield item.filename, archive.read(item)
    except zipfile.BadZipFile as error:
        raise InputError(f"Expected a bundle, got a damaged archive {path}: {error}; ask for it again.") from None
