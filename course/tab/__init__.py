"""The course's Python in a browser tab: what the pages of the site ask of it, and how it gets there."""
