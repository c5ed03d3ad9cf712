"""SmartGen: selective KV cache transfer for disaggregated LLM inference."""
