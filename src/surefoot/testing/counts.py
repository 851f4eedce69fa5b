"""Whether counts fit the probabilities they should have come from, with a bound that holds at any size."""

from __future__ import annotations

import math
from collections.abc import Sequence


def log_p_value(counts: Sequence[int], probs: Sequence[float]) -> float:
    """Log of a bound on the probability that counts are as far from `probs` as these are.

    With x = Σ c · log(c / (n p)), half of the G statistic, and k cells of positive probability, it is at most
    (e x / (k − 1))^(k − 1) · e^(−x) for x > k − 1 (Agrawal 1904.02291, theorem I.2). A p-value from the χ²
    distribution is smaller, but only roughly right where cells are small, and least so far out in the tail.

    counts, probs: one each per cell; the probabilities sum to 1. A count where there is no probability gives
    −infinity.
    """
    total = sum(counts)
    if any(count and not prob > 0 for count, prob in zip(counts, probs, strict=True)):
        return -math.inf
    x = sum(
        count * math.log(count / (total * prob)) for count, prob in zip(counts, probs, strict=True) if count
    )
    freedom = sum(prob > 0 for prob in probs) - 1
    if not freedom or x <= freedom:
        return 0.0
    return freedom * (1 + math.log(x / freedom)) - x
