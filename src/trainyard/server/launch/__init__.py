"""From a job to what each of its tasks is told, shown and given. Pure, but for what reads the facts."""
