"""Sessions, tasks, jobs: async, written once above Transport and Backend, knowing neither's kinds."""
