"""The dashboard's view in the browser, and what it is told."""
