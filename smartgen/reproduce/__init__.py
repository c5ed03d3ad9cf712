"""The evaluation, rebuilt by one command: runs, figures, claims, and what they rest on."""
