"""The paper's claims, what to measure for each, and constants fitted to some of them."""
