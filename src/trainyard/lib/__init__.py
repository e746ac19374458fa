"""Pieces that could be other people's libraries: none of them knows a word of our domain."""
