"""Does a variant fit a plan, with the bytes of every part; how fast will it be, and for how many users."""

from deployctl.sizing.choose import choose
from deployctl.sizing.fit import Capacity, Fit, Parts
from deployctl.sizing.show import from_show

__all__ = ["Capacity", "Fit", "Parts", "choose", "from_show"]
