"""A real model in a browser tab: its decoder in WebAssembly, behind the engine's own scheduler and block tables."""
