"""How many drafts survive on the whole: what stands in for a block of which nothing is known."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


class MeanSurvival:
    """Share of offered drafts that survived, by position.

    Args:
        num_drafts: positions.
        weight: blocks that the first guess counts for.
        first_guess: chance of a draft to survive where those before it did.

    Attributes:
        reached: offered drafts whose predecessors survived, by position, float64 ``[K]``.
        survived: those of them that survived themselves.
    """

    def __init__(self, num_drafts: int, weight: float = 16.0, first_guess: float = 0.7) -> None:
        self.reached = np.full(num_drafts, weight)
        self.survived = self.reached * first_guess

    def settle(self, offered: ArrayLike, accepted: ArrayLike) -> None:
        """Count verified blocks: ``accepted[i]`` of the first ``offered[i]`` drafts survived.

        Raises:
            ValueError: more survived than were offered, or more were offered than there are.
        """
        offered, accepted = np.atleast_1d(offered), np.atleast_1d(accepted)
        count = len(self.reached)
        if ((accepted < 0) | (accepted > offered) | (offered > count)).any():
            raise ValueError(
                f"{accepted.tolist()} of {offered.tolist()} drafts survived; no more survive than "
                f"were offered, and no more are offered than {count}"
            )
        position = np.arange(count)
        reached = np.minimum(accepted + 1, offered)
        self.reached += (position < reached[:, None]).sum(0)
        self.survived += (position < accepted[:, None]).sum(0)

    def rates(self) -> NDArray[np.float64]:
        """Cumulative chances of survival, ``[K]``."""
        return survival_rates(self.survived, self.reached)


def survival_rates(
    survived: NDArray[np.float64], reached: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Cumulative chances of survival, ``[K]``, by what ``MeanSurvival`` counts."""
    return np.cumprod(survived / reached)
