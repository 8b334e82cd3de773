"""What drafts add to a step, and how steps without them compare to the step-time model's word.

The two are told apart by the steps that they are seen in: `ratio` by those without drafts, what is longer in the others
is the drafts'. The model's own fit sees the former alone, or one error would feed the other.
"""

from __future__ import annotations

from core_engine.llm.step_time import StepTime

RATIO_GAIN = 0.1  # of one more step without drafts; the first ones count more
ROW_MEMORY = 0.9  # of a step with drafts at the next one
PRIOR_WEIGHT = 0.01  # of a draft token costing as much as a prompt's: a token that takes a tenth of the step
LEAST_SHARE = 0.01  # of a step: what a row is thought to take at the least before any was seen
MOST_LONGER = 2.0  # how much longer than expected a step counts: a neighbour on the machine may have held it up


class StepCost:
    def __init__(self) -> None:
        self.ratio = 1.0
        self._num_plain = 1
        self._unit_s = 0.0  # a row's time before any was seen; rows are counted in it
        self._squares = self._products = PRIOR_WEIGHT  # of drafts by themselves, and by what was longer

    def row_s(self, step_time: StepTime) -> float:
        """Seconds that one draft token adds to a step."""
        if not self._unit_s:
            self._unit_s = max(step_time.b, LEAST_SHARE * step_time.shortest())
        return self._products / self._squares * self._unit_s

    def observe(self, plain_s: float, num_drafts: int, seconds: float, step_time: StepTime) -> None:
        """A step took `seconds`; the model said `plain_s` for it without its drafts."""
        if plain_s <= 0:
            return
        expected_s = self.ratio * plain_s + num_drafts * self.row_s(step_time)
        seen = min(seconds, MOST_LONGER * expected_s) / plain_s
        if num_drafts:
            drafts = num_drafts * self._unit_s / plain_s
            self._squares = ROW_MEMORY * self._squares + drafts * drafts
            self._products = max(0.0, ROW_MEMORY * self._products + drafts * (seen - self.ratio))
        else:
            self._num_plain += 1
            self.ratio += max(RATIO_GAIN, 1 / self._num_plain) * (seen - self.ratio)
