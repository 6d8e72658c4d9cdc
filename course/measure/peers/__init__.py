"""The engines that minillm is measured beside: Hugging Face transformers, llama.cpp, nano-vllm, vLLM."""
