"""Readers: raw files to chunks, one module for each family of layouts."""

from tasks.readers.chunk import Chunk
from tasks.readers.open import open_chunks, source_paths

__all__ = ["Chunk", "open_chunks", "source_paths"]
