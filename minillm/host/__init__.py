"""This machine: caches on its disk, its memory, its GPU, OpenMP's threads, its clock."""
