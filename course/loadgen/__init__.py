"""A load generator for any OpenAI-compatible endpoint: `minillm bench serve`.

planned_requests.py (what to send, and when) -> play.py (sends it, client.py a request) -> observation.py (what each
client saw, out of the bytes that stream.py reads) -> report.py, validity.py.
"""
