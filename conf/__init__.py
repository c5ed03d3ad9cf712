"""The configuration: one folder a group, one file an option. Hydra finds it through this file."""
