"""The verbs: where each lives and what it does in a line. Static, so that `--help` imports none of them."""

from __future__ import annotations

# Section → verb → (module under trainyard.cli, what it does). The module's attribute is the verb with `_command` added.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Machines": {
        "create": ("create", "Make machines, or find them again by name."),
        "ls": ("ls", "List machines."),
        "start": ("lifecycle", "Start stopped machines."),
        "stop": ("lifecycle", "Stop machines; their files are kept."),
        "kill": ("lifecycle", "Release machines for good, with their files."),
        "rename": ("lifecycle", "Give a machine another name."),
        "top": ("top", "Show what machines use: CPU, memory, GPUs."),
    },
    "Work on them": {
        "run": ("run", "Run a command in the shell of a task or a whole job."),
        "logs": ("logs", "Show what commands have printed; -f follows."),
        "wait": ("logs", "Wait until the commands of a task or job have ended."),
        "ssh": ("attach", "Log in, or run one command beside the task's shell."),
        "tmux": ("attach", "Attach your terminal to the task's shell."),
        "scp": ("scp", "Copy files and folders to and from machines."),
        "launch": ("launch", "Start a program once for each device of this machine."),
    },
    "Where machines come from": {
        "hosts": ("hosts", "Manage the hosts that are reached by ssh."),
        "addip": ("cloud", "Let this computer through the machines' firewall."),
        "mount": ("cloud", "Mount the shared storage on machines."),
        "queryimage": ("cloud", "List the images there are."),
        "querygpu": ("cloud", "List the GPUs or GPU machine types there are."),
        "cleanup": ("cleanup", "Remove what machines left behind in a cloud."),
        "emulate": ("emulate", "Run a cloud on this computer, to try and test scripts."),
    },
    "A platform for a team": {
        "up": ("up", "Start a platform on this machine."),
        "server": ("up", "Run a server of a platform from a settings file."),
        "admin": ("admin", "Look after a platform's users, tokens and database."),
        "login": ("login", "Log in to a platform, or say who is logged in."),
        "logout": ("login", "Log out, and revoke the token."),
        "passwd": ("login", "Change your password on the platform."),
        "jobs": ("jobs", "Submit jobs to the platform, and manage them."),
        "queue": ("queue", "Show what runs and what waits."),
        "templates": ("templates", "Keep jobs to be submitted again."),
        "schedules": ("schedules", "Have jobs submitted by the clock."),
        "code": ("codes", "Manage the repositories that jobs check out."),
        "secrets": ("secrets", "Keep secrets for jobs: values that nobody sees again."),
        "nodes": ("nodes", "Manage the machines that run the platform's jobs."),
        "pools": ("pools", "Manage machines that are bought when the queue needs them."),
        "storages": ("storages", "Manage the folders that tasks see."),
        "registries": ("storages", "Manage sign-ins for images."),
        "workspaces": ("workspaces", "Manage teams, their quota and members."),
        "quota": ("quota", "Show what teams may use, and what they use."),
        "usage": ("usage", "Show what jobs have used and cost."),
        "budgets": ("usage", "Say what a month may cost."),
    },
    "Plan": {
        "simulate": ("simulate", "Try scheduling policies on invented or recorded jobs."),
    },
    "This program": {
        "doctor": ("doctor", "Check the set-up and say what to fix."),
        "completion": ("completion", "Print the completion script for your shell."),
        "help": ("assist", "Show this help, or that of a verb."),
    },
}

VERBS: dict[str, tuple[str, str]] = {
    verb: entry for section in SECTIONS.values() for verb, entry in section.items()
}
