"""OpenAI-compatible upstreams (vLLM, Ollama, llama.cpp, any URL). See ``docs/runners.md``."""

from server.backends.openai.runner import OpenAIRunner

__all__ = ["OpenAIRunner"]
