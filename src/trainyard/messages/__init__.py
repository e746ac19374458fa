"""Sentences for people, in English and Chinese, by the codes that programs decide on."""
