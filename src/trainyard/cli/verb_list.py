"""The list of commands: module and one-line help of each. It is static, so that `--help` imports none of them."""

from __future__ import annotations

# Section → verb → (module under trainyard.cli, what it does). The module's attribute is the verb with `_command` added.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Machines": {
        "create": ("machines.create", "Make machines, or find them again by name."),
        "ls": ("machines.ls", "List machines."),
        "start": ("machines.lifecycle", "Start stopped machines."),
        "stop": ("machines.lifecycle", "Stop machines; their files are kept."),
        "kill": ("machines.lifecycle", "Release machines for good, with their files."),
        "rename": ("machines.lifecycle", "Give a machine another name."),
        "top": ("machines.top", "Show what machines use: CPU, memory, GPUs."),
    },
    "Work on them": {
        "run": ("machines.run", "Run a command in the shell of a task or a whole job."),
        "logs": ("machines.logs", "Show what commands have printed; -f follows."),
        "wait": ("machines.logs", "Wait until the commands of a task or job have ended."),
        "ssh": ("machines.attach", "Log in, or run one command beside the task's shell."),
        "tmux": ("machines.attach", "Attach your terminal to the task's shell."),
        "scp": ("machines.scp", "Copy files and folders to and from machines."),
        "launch": ("machines.launch", "Start a program once for each device of this machine."),
    },
    "Where machines come from": {
        "hosts": ("machines.hosts", "Manage the hosts that are reached by ssh."),
        "addip": ("machines.cloud", "Let this computer through the machines' firewall."),
        "mount": ("machines.cloud", "Mount the shared storage on machines."),
        "queryimage": ("machines.cloud", "List the images there are."),
        "querygpu": ("machines.cloud", "List the GPUs or GPU machine types there are."),
        "cleanup": ("machines.cleanup", "Remove what machines left behind in a cloud."),
        "emulate": ("emulate", "Run a cloud on this computer, to try and test scripts."),
    },
    "A platform for a team": {
        "up": ("platform.up", "Start a platform on this machine."),
        "server": ("platform.up", "Run a server of a platform from a settings file."),
        "admin": ("platform.admin", "Look after a platform's users, tokens and database."),
        "login": ("platform.login", "Log in to a platform, or say who is logged in."),
        "logout": ("platform.login", "Log out, and revoke the token."),
        "passwd": ("platform.login", "Change your password on the platform."),
        "jobs": ("jobs.jobs", "Submit jobs to the platform, and manage them."),
        "queue": ("jobs.queue", "Show what runs and what waits."),
        "templates": ("jobs.templates", "Keep jobs to be submitted again."),
        "schedules": ("jobs.schedules", "Have jobs submitted by the clock."),
        "code": ("jobs.code_sources", "Manage the repositories that jobs check out."),
        "secrets": ("jobs.secrets", "Keep secrets for jobs: values that nobody sees again."),
        "nodes": ("platform.nodes", "Manage the machines that run the platform's jobs."),
        "pools": ("platform.pools", "Manage machines that are bought when the queue needs them."),
        "storages": ("platform.storages", "Manage the folders that tasks see."),
        "registries": ("platform.storages", "Manage sign-ins for images."),
        "workspaces": ("platform.workspaces", "Manage teams, their quota and members."),
        "quota": ("platform.quota", "Show what teams may use, and what they use."),
        "usage": ("platform.usage", "Show what jobs have used and cost."),
        "budgets": ("platform.usage", "Say what a month may cost."),
    },
    "Plan": {
        "simulate": ("simulate", "Try scheduling policies on invented or recorded jobs."),
    },
    "This program": {
        "doctor": ("doctor", "Check the set-up and say what to fix."),
        "completion": ("completion", "Print the completion script for your shell."),
        "help": ("help_verb", "Show this help, or that of a verb."),
    },
}

VERBS: dict[str, tuple[str, str]] = {
    verb: entry for section in SECTIONS.values() for verb, entry in section.items()
}
