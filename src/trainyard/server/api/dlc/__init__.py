"""The door of PAI-DLC's clients: their REST, their words, their errors, over the same services. Nothing else speaks so."""
