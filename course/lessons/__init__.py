"""What each lesson has of its own, a room a lesson."""
