"""What to push, in what order, when. No clock, and no I/O but a profile's file."""

from smartgen.policy.importance import Profile, block_importance
from smartgen.policy.order import order_blocks
from smartgen.policy.plan import Plan, proactive_budget, speculate
from smartgen.policy.policy import Policy
from smartgen.policy.routing import choose

__all__ = [
    "Plan",
    "Policy",
    "Profile",
    "block_importance",
    "choose",
    "order_blocks",
    "proactive_budget",
    "speculate",
]
