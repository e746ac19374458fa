"""The platform: memory (a store), judgement (the scheduler) and doors (REST), over the same core as the library."""
