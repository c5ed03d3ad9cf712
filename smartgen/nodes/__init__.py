"""Pieces that the nodes of every backend are made of: room, writers, landings, timing, reports.

They keep books over a Runtime's events. What a node moves, and on which clock, is the backend's.
"""
