"""What to push, in what order, when. No clock, and no I/O but a profile's file."""

from smartgen.policy.importance import Profile, block_importance
from smartgen.policy.observation import Observation
from smartgen.policy.order import order_blocks
from smartgen.policy.plan import Plan, proactive_budget
from smartgen.policy.policy import Policy
from smartgen.policy.routing import choose
from smartgen.policy.speculation import Quotas, fixed_quotas, observed_quotas, speculate

__all__ = [
    "Observation",
    "Plan",
    "Policy",
    "Profile",
    "Quotas",
    "block_importance",
    "choose",
    "fixed_quotas",
    "observed_quotas",
    "order_blocks",
    "proactive_budget",
    "speculate",
]
