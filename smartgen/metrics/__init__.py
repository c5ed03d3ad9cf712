"""From what nodes report to tables and summaries: schema 1."""
