"""Slots reconstructed from what a client saw."""

import numpy as np

from deployctl.capacity.occupancy import served
from deployctl.capacity.probe import Look


def test_an_answer_that_came_while_all_slots_that_we_know_of_were_held_had_one_nonetheless(table):
    # One slot is believed in, and there are two: user 0 is still being answered when user 1 has been, 0.5 s to 2 s.
    look = Look(2, 3.0, table([0.5], ttft=[0.5], e2e=[1.5], tpot=[0.1], tokens=[11]), np.array([0.0]))
    found = served(look, 1)
    assert found is not None
    assert found.middle_s.tolist() == [1.5]  # it had the slot at its first token at the latest, at 1 s
