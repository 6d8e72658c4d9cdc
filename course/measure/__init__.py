"""How the course's and the docs' tables were made: quality, attention, peers, what a GPU gives."""
