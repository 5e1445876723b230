"""The exact law of the halting index: P[k] = int p(z) prod_{i<k} F(z - q_i) S(z - q_k) dz, by
quadrature.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import laplace, norm


def halting_law(
    queries: np.ndarray, threshold_scale: float, query_scale: float, noise: str
) -> np.ndarray:
    """Chances of halting at 0 .. K - 1 and of not halting, shape (K + 1,)."""
    law = laplace if noise == "laplace" else norm
    z = np.linspace(-40 * threshold_scale, 40 * threshold_scale, 40_001)
    going = law.pdf(z, scale=threshold_scale)
    chances = []
    for query in queries:
        below = law.cdf(z - query, scale=query_scale)
        chances.append(np.trapezoid(going * (1.0 - below), z))
        going = going * below
    return np.array([*chances, np.trapezoid(going, z)])
