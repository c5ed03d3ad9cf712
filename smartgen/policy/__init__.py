"""What to push, in what order, when. No clock, and no I/O but a profile's file."""

from smartgen.policy.importance import Profile, block_importance
from smartgen.policy.order import order_blocks
from smartgen.policy.plan import Plan, Progress, proactive_budget, speculate
from smartgen.policy.policy import Policy

__all__ = [
    "Plan",
    "Policy",
    "Profile",
    "Progress",
    "block_importance",
    "order_blocks",
    "proactive_budget",
    "speculate",
]
