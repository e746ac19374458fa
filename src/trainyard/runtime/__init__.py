"""Sessions, tasks and jobs: async code that works over every Transport and every Backend."""
