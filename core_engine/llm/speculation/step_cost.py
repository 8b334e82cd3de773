"""What drafts add to a step, and how steps without them compare to the step-time model's word.

The two are told apart by the steps that they are seen in: `ratio` by those without drafts, what is longer in the others
is the drafts'. The model's own fit sees the former alone, or one error would feed the other. The first rows more may
cost next to nothing where weights have to be read anyway, and later ones in full, so that a row's time is learnt for
each order of their number; orders that are seldom seen take it from all others.
"""

from __future__ import annotations

from core_engine.llm.step_time import StepTime

RATIO_GAIN = 0.1  # of one more step without drafts; the first ones count more
ROW_MEMORY, ORDER_MEMORY = 0.9, 0.97  # of a step with drafts at the next one: for all orders together, and for each
WEIGHT = 0.01  # of what is thought before: that of a step of which a tenth goes to drafts
LEAST_SHARE = 0.01  # of a step: what a row is thought to take at the least before any was seen
MOST_OFF = 0.5  # from what is expected: by more no step counts, since neighbours on the machine hold up single ones
NUM_ORDERS = 12  # 1, 2, 3-4, 5-8, ... draft tokens in a step


class Mean:
    """Seconds of a draft token, in some unit, by least squares through zero; old steps fade."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._squares = self._products = 0.0

    def fade(self) -> None:
        self._squares *= self._memory
        self._products *= self._memory

    def add(self, drafts: float, longer: float) -> None:
        """A step with `drafts` was `longer` by so much, both by what it takes without."""
        self._squares += drafts * drafts
        self._products = max(0.0, self._products + drafts * longer)

    def value(self, prior: float) -> float:
        return (self._products + WEIGHT * prior) / (self._squares + WEIGHT)


class StepCost:
    def __init__(self) -> None:
        self.ratio = 1.0
        self._num_plain = 1
        self._unit_s = 0.0  # a draft token's time before any was seen
        self._any = Mean(ROW_MEMORY)
        self._orders = [Mean(ORDER_MEMORY) for _ in range(NUM_ORDERS)]

    def row_s(self, num_drafts: int, step_time: StepTime) -> float:
        """Seconds that each of so many draft tokens adds to a step."""
        if not self._unit_s:
            self._unit_s = max(step_time.b, LEAST_SHARE * step_time.shortest())
        return self._orders[_order(num_drafts)].value(self._any.value(1.0)) * self._unit_s

    def observe(self, plain_s: float, num_drafts: int, seconds: float, step_time: StepTime) -> None:
        """A step took `seconds`; the model said `plain_s` for it without its drafts."""
        if plain_s <= 0:
            return
        expected_s = self.ratio * plain_s + num_drafts * self.row_s(num_drafts, step_time)
        seen = min(max(seconds, (1 - MOST_OFF) * expected_s), (1 + MOST_OFF) * expected_s) / plain_s
        if not num_drafts:
            self._num_plain += 1
            self.ratio += max(RATIO_GAIN, 1 / self._num_plain) * (seen - self.ratio)
            return
        for mean in (self._any, *self._orders):
            mean.fade()
        for mean in (self._any, self._orders[_order(num_drafts)]):
            mean.add(num_drafts * self._unit_s / plain_s, seen - self.ratio)


def _order(num_drafts: int) -> int:
    """0 for 1, 1 for 2, 2 for 3 and 4, 3 for 5 to 8, and so on."""
    return min(NUM_ORDERS - 1, max(0, num_drafts - 1).bit_length())
