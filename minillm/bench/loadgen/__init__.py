"""A load generator for any OpenAI-compatible endpoint: `minillm bench serve`.

asks.py (what to send, and when) -> play.py (sends it, client.py a request) -> observation.py (what each client
saw, out of the bytes that stream.py reads) -> report.py, cautions.py, picture.py.
"""
