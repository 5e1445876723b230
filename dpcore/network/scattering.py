"""Fixed wavelet features of images: no parameter, nothing learned, so they cost no privacy."""

from __future__ import annotations

from functools import lru_cache
from math import pi

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

ANGLES = 8
# Wavelets of scale j: width WIDTH 2^j pixels, centre frequency FREQUENCY / 2^j, height the width
# over SLANT.
WIDTH, FREQUENCY, SLANT = 0.8, 3.0 * pi / 4.0, 4.0 / ANGLES
# Channels of one image: the mean, 2 scales at 8 angles, and 8 x 8 paths from the fine to the coarse
# scale. Those of the first order alone, and those that are centred and scaled together.
CHANNELS = 1 + 2 * ANGLES + ANGLES * ANGLES
FIRST = (1, ANGLES, ANGLES)
GROUP = 3
STRIDE = 4
# Numbers that a pass holds for each pixel of a filled-up image, by the order of the features.
BESIDE = {1: 40, 2: 100}


def shape_of(image: tuple[int, ...], order: int) -> tuple[int, int, int]:
    """Pixels a side of an ``image`` (channels, height, width) filled up, and channels and cells a
    side of its features.
    """
    side = -(-(max(image[1:]) + STRIDE) // 8) * 8
    return side, image[0] * (CHANNELS if order == 2 else sum(FIRST)), side // STRIDE - 1


class Scattering(nn.Module):
    """Two-layer Morlet scattering (Bruna & Mallat 2013; J = 2, L = 8), normalised within each
    record.

    S x = (x * phi, |x * psi_j,a| * phi, ||x * psi_0,a| * psi_1,b| * phi), every fourth pixel, for
    each colour of an ``image`` (channels, height, width) given flat; without the last part where
    ``order`` is 1. Groups of three channels (of the first order the mean, each scale) are then
    centred and scaled to variance 1, and the whole vector to norm 1: each step reads one record.
    Tramer & Boneh (2021) train on such features. What all images have in common, over half of the
    squared norm on digits, tells no class from another and takes a share of every clipped
    gradient: ``centre_on`` takes off a mean over public images, and scales to norm 1 again.
    """

    def __init__(self, image: tuple[int, ...], order: int = 2) -> None:
        super().__init__()
        self.image, self.order = tuple(image), order
        self.side, self.channels, self.cells = shape_of(self.image, order)
        # Plain attributes, not buffers: they follow from ``image`` and are no state.
        self.fine, self.coarse = _wavelets(self.side)
        self.low = torch.tensor(_low_pass(self.side, STRIDE), dtype=torch.float32)
        self.low_half = torch.tensor(_low_pass(self.side // 2, STRIDE // 2), dtype=torch.float32)
        self.centre: Tensor | None = None

    def centre_on(self, public: Tensor) -> None:
        """Take the mean features of ``public`` images (m, pixels) off those of every record."""
        self.centre = None
        few = max(1, STROKES_AT_ONCE // self.beside)
        with torch.no_grad():
            self.centre = torch.cat(
                [self(public[k : k + few]) for k in range(0, len(public), few)]
            ).mean(0)

    @property
    def size(self) -> int:
        """Features of a record."""
        return self.channels * self.cells**2

    @property
    def beside(self) -> int:
        """Numbers that a pass holds for a record."""
        return BESIDE[self.order] * self.image[0] * self.side**2

    def forward(self, x: Tensor) -> Tensor:
        height, width = self.image[1:]
        pad_h, pad_w = self.side - height, self.side - width
        x = x.reshape(-1, 1, height, width)
        x = F.pad(x, (pad_w // 2, pad_w - pad_w // 2, pad_h // 2, pad_h - pad_h // 2))
        spectrum = torch.fft.fft2(x)
        first = torch.fft.ifft2(spectrum * self.fine.to(x.dtype)).abs()
        second = [self._coarse(spectrum)]
        if self.order == 2:
            second += [self._coarse(torch.fft.fft2(first[:, a : a + 1])) for a in range(ANGLES)]
        low, half = self.low.to(x.dtype), self.low_half.to(x.dtype)
        full = low @ torch.cat([x, first], dim=1) @ low.T
        rest = half @ torch.cat(second, dim=1) @ half.T
        return self._normalised(
            torch.cat([full, rest], dim=1).reshape(-1, self.channels, self.cells**2)
        )

    def _coarse(self, spectrum: Tensor) -> Tensor:
        """|u * psi_1,a| at every second pixel, (B, 8, side / 2, side / 2), from the spectrum of u:
        the four parts of the product's spectrum that fall on one frequency of the coarser grid are
        added before going back."""
        product = spectrum * self.coarse.to(spectrum.real.dtype)
        half = self.side // 2
        folded = product[..., :half, :] + product[..., half:, :]
        folded = (folded[..., :half] + folded[..., half:]) / 4.0
        coarse: Tensor = torch.fft.ifft2(folded).abs()
        return coarse

    def _normalised(self, x: Tensor) -> Tensor:
        if self.order == 2:
            x = F.group_norm(x, self.channels // GROUP, eps=1e-5)
        else:
            colours = x.reshape(len(x), -1, sum(FIRST), self.cells**2)
            parts = torch.split(colours, list(FIRST), dim=2)
            x = torch.cat([F.layer_norm(part, part.shape[2:]) for part in parts], dim=2)
        x = _unit(x.flatten(1))
        return x if self.centre is None else _unit(x - self.centre.to(x.dtype))


def _unit(x: Tensor) -> Tensor:
    """Rows ``x`` (n, k) scaled to norm 1."""
    unit: Tensor = x / x.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return unit


# Strokes that stand for images in general: how many; an image of one or two; the deviation of the
# pen, in pixels of 28.
STROKES, PEN = 256, 1.3
# Numbers that a pass over them may hold.
STROKES_AT_ONCE = 150_000_000


def strokes(image: tuple[int, ...]) -> Tensor:
    """Drawn images (STROKES, pixels), flat, values 0 to 1, the middle of their brightness in the
    centre: one or two cubic Bezier curves each, their points uniform in the inner part.

    They follow from the size of ``image`` (channels, height, width) and a fixed seed, so what is
    computed of them is public.
    """
    channels, high, wide = image
    rng = np.random.default_rng(0)
    t = np.linspace(0.0, 1.0, 40)[:, None]
    bernstein = np.hstack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])
    row, column = np.arange(high), np.arange(wide)
    size, unit = np.array([high, wide]), min(high, wide) / 28.0
    found = np.empty((STROKES, channels, high, wide), dtype=np.float32)
    for drawn in found:
        ends = rng.uniform(0.18, 0.79, (rng.integers(1, 3), 4, 2)) * size
        y, x = (bernstein @ ends).reshape(-1, 2).T
        near, step = np.full((high, wide), np.inf), max(1, 1_000_000 // (high * wide))
        for start in range(0, len(y), step):
            some = slice(start, start + step)
            apart = (row[:, None, None] - y[some]) ** 2 + (column[None, :, None] - x[some]) ** 2
            np.minimum(near, apart.min(2), out=near)
        ink = np.minimum(1.6 * np.exp(-near / (2.0 * (PEN * unit) ** 2)), 1.0)
        down = (high - 1) / 2 - ink.sum(1) @ row / ink.sum()
        right = (wide - 1) / 2 - ink.sum(0) @ column / ink.sum()
        drawn[:] = np.roll(ink, (round(down), round(right)), (0, 1))
    return torch.from_numpy(found).flatten(1)


@lru_cache(maxsize=2)
def _wavelets(side: int) -> tuple[Tensor, Tensor]:
    """Those of the fine and of the coarse scale, (8, side, side) each."""
    fine, coarse = (
        np.array([_morlet(side, scale, a).astype(np.float32) for a in range(ANGLES)])
        for scale in range(2)
    )
    return torch.from_numpy(fine), torch.from_numpy(coarse)


def _morlet(side: int, scale: int, angle: int) -> np.ndarray:
    """Transfer function (side, side) of the wavelet of ``scale`` at angle pi * ``angle`` / 8, 0 at
    frequency 0.
    """
    theta, width, frequency = pi * angle / ANGLES, WIDTH * 2.0**scale, FREQUENCY / 2.0**scale
    wave = _gabor(side, width, theta, frequency)
    envelope = _gabor(side, width, theta, 0.0)
    return np.asarray(np.fft.fft2(wave - envelope * (wave.sum() / envelope.sum())).real)


def _gabor(side: int, width: float, theta: float, frequency: float) -> np.ndarray:
    """exp(-(u^2 + SLANT^2 v^2) / (2 width^2) + i frequency u) in rotated coordinates, repeated with
    period ``side``.
    """
    total = np.zeros((side, side), dtype=complex)
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            y, x = np.mgrid[:side, :side].astype(float)
            y, x = y + dy * side, x + dx * side
            u, v = x * np.cos(theta) + y * np.sin(theta), -x * np.sin(theta) + y * np.cos(theta)
            total += np.exp(-(u**2 + SLANT**2 * v**2) / (2.0 * width**2) + 1j * frequency * u)
    return total * SLANT / (2.0 * pi * width**2)


def _low_pass(side: int, stride: int) -> np.ndarray:
    """Matrix (cells, side): Gaussian means around every ``stride``-th pixel but the first, on a
    circle.
    """
    width = 2.0 * WIDTH * stride / STRIDE
    place = np.arange(side)
    rows = []
    for centre in range(stride, side, stride):
        gap = (place - centre + side / 2) % side - side / 2
        weight = np.exp(-(gap**2) / (2.0 * width**2))
        rows.append(weight / weight.sum())
    return np.array(rows)
