"""Reading what the engine recorded: summaries, exports, live snapshots. Writes nothing back."""
