"""What Li et al. saw: Scaling Distributed Machine Learning with the Parameter Server, OSDI 2014."""

from __future__ import annotations

#: By bound of staleness, where 0 is sequential: the part of their time that workers waited, and the bound with which
#: training took the least time in all (sparse logistic regression, 800 workers, 200 servers).
WAITING = {0: 0.50, 16: 0.017}
BEST_TAU = 8
#: How many times as fast 6,000 machines were as 1,000 (topic models).
SPEED_UP = 4.0
