"""Jobs: submitted, looked at and changed by people; their life, dependencies, sweeps, schedules and templates."""
