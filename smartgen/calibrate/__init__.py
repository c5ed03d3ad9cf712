"""Constants of cards from tables of measurements: read a table, fit a law, say how good it is."""
