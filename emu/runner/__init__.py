"""Runs Hugging Face's own forward, suspended at every attention: what is attended is the caller's.

Needs the extra emu (torch, transformers, greenlet); nothing but the nodes that compute imports it.
"""

from smartgen.emu.runner.attention import attend_prefill, attend_rows
from smartgen.emu.runner.decoder import Attention, Decoder, Forward, Logits

__all__ = ["Attention", "Decoder", "Forward", "Logits", "attend_prefill", "attend_rows"]
