"""How the tasks of one attempt meet: they wait for each other, and find each other's ssh."""
