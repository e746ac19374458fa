"""The tables, and nothing else. Times are POSIX seconds (float), amounts integers, structures JSON text.

Every row that people and loops both change has a `version`: a write names the version that it read.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite counts up by itself only in a column that is spelt INTEGER.
SERIAL = BigInteger().with_variant(Integer, "sqlite")

users = Table(
    "users",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("display_name", Text, nullable=False, default=""),
    Column("email", Text, nullable=False, default=""),
    Column("password_hash", Text, nullable=False, default=""),  # empty: no password sign-in
    Column("must_change_password", Boolean, nullable=False, default=False),
    Column("oidc_subject", Text, nullable=True, unique=True),  # issuer, a blank, subject
    Column("is_admin", Boolean, nullable=False, default=False),
    Column("is_active", Boolean, nullable=False, default=True),
    Column("created_at", Float, nullable=False),
    Column("version", Integer, nullable=False, default=1),
)

# Whom the tasks of a user run as on nodes of root's. Rows stay when their user has gone: files may still be that number's.
user_numbers = Table(
    "user_numbers",
    metadata,
    Column("number", SERIAL, primary_key=True, autoincrement=True),
    Column("user_id", String(32), nullable=False, unique=True),
    sqlite_autoincrement=True,  # a number is never given twice
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("user_id", String(32), ForeignKey("users.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("name", Text, nullable=False, default=""),
    Column(
        "digest", String(64), nullable=False, unique=True
    ),  # SHA-256 of the token: the token is never stored
    Column("scopes", JSON, nullable=False),  # names from auth/scopes.py; ["*"]: all that the user may
    Column("kind", String(16), nullable=False, default="token"),  # see auth/authentication.py
    # The secret of an access key, which has to be read to check a signature: sealed with a key outside the database.
    Column("sealed", LargeBinary, nullable=True),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float, nullable=True),
    Column("last_used_at", Float, nullable=True),
    Column("revoked_at", Float, nullable=True),
)

groups = Table(
    "groups",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("quota", JSON, nullable=False),
    Column("version", Integer, nullable=False, default=1),
)

workspaces = Table(
    "workspaces",
    metadata,
    Column("id", String(32), primary_key=True),  # ws…
    Column("name", String(64), nullable=False, unique=True),
    Column("description", Text, nullable=False, default=""),
    Column("group_id", String(32), ForeignKey("groups.id"), nullable=True),
    Column("quota", JSON, nullable=False),  # nominal, borrow, lend, per_user, users, weight, strategy
    Column("needs_approval", Boolean, nullable=False, default=False),  # every job waits for a person first
    Column("max_run_seconds", Integer, nullable=False, default=0),
    Column("created_at", Float, nullable=False),
    Column("archived_at", Float, nullable=True),
    Column("version", Integer, nullable=False, default=1),
)

members = Table(
    "members",
    metadata,
    Column("workspace_id", String(32), ForeignKey("workspaces.id", ondelete="CASCADE"), primary_key=True),
    Column("user_id", String(32), ForeignKey("users.id", ondelete="CASCADE"), primary_key=True, index=True),
    Column("role", String(16), nullable=False),  # admin, member, viewer
)

requests = Table(  # for an account, for membership, for quota; a person decides
    "requests",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("name", String(64), nullable=False, default=""),
    Column("user_id", String(32), ForeignKey("users.id", ondelete="CASCADE"), nullable=True),
    Column("workspace_id", String(32), ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=True),
    Column("body", JSON, nullable=False),
    Column("state", String(16), nullable=False, default="open"),  # open, approved, refused
    Column("decided_by", String(32), nullable=True),
    Column("decided_at", Float, nullable=True),
    Column("answer", Text, nullable=False, default=""),
    Column("created_at", Float, nullable=False),
    Column("version", Integer, nullable=False, default=1),
)

nodes = Table(
    "nodes",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("engine", String(16), nullable=False, default="nodes"),
    Column(
        "address", JSON, nullable=False
    ),  # how it is reached: {"backend": "local"} or {"backend": "ssh", "host": …}
    Column("pool", String(63), nullable=False, default="default"),
    Column("cpu", Integer, nullable=False, default=0),  # thousandths of a core
    Column("memory_mib", Integer, nullable=False, default=0),
    Column("reserved_cpu", Integer, nullable=False, default=0),
    Column("reserved_memory_mib", Integer, nullable=False, default=0),
    Column("devices", JSON, nullable=False),  # {type: count}
    Column("simulated", Boolean, nullable=False, default=False),  # the devices are declared, not found
    Column("unhealthy", JSON, nullable=False),  # {type: [index]}
    Column("labels", JSON, nullable=False),
    Column("taints", JSON, nullable=False),  # ["key" or "key=value"]
    Column("topology", JSON, nullable=False),
    Column("desired", String(16), nullable=False, default="ready"),  # ready, cordoned, drained, gone
    Column("state", String(16), nullable=False, default="joining"),  # joining, ready, lost, refused
    Column("reason", Text, nullable=False, default=""),
    Column("boot_id", String(64), nullable=False, default=""),
    Column("facts", JSON, nullable=False),  # what its probe said last: disk, clock skew, versions
    Column("failures", Integer, nullable=False, default=0),  # of starts, in a row
    Column("avoid_until", Float, nullable=True),  # on the black list until then
    Column(
        "fence_seconds", Integer, nullable=False, default=0
    ),  # silent so long, it ends its tasks itself; 0: never
    Column("options", JSON, nullable=False, default=dict),  # images: ignore, refuse …
    Column("seen_at", Float, nullable=True),
    Column("created_at", Float, nullable=False),
    Column("version", Integer, nullable=False, default=1),
)

workloads = Table(
    "workloads",
    metadata,
    Column("id", String(32), primary_key=True),  # job…: later ids sort later
    Column("name", Text, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("workspace_id", String(32), ForeignKey("workspaces.id"), nullable=False),
    Column("user_id", String(32), ForeignKey("users.id"), nullable=False),
    Column("spec", JSON, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("preemptible", Boolean, nullable=False, default=False),
    Column("state", String(16), nullable=False),
    Column("desired", String(16), nullable=False, default="run"),
    Column("version", Integer, nullable=False, default=1),
    Column("attempt", Integer, nullable=False, default=0),  # of starts, from 1
    Column("failures", Integer, nullable=False, default=0),  # retries used up
    Column("ending", String(16), nullable=False, default=""),  # FINISHING: the state that comes after it
    Column("reason", String(48), nullable=False, default=""),  # a code, see reasons in services/reasons
    Column("message", Text, nullable=False, default=""),
    Column("facts", JSON(none_as_null=True), nullable=True),  # what the reason's sentence names
    Column("exit_code", Integer, nullable=True),
    Column("avoid", JSON, nullable=False),  # nodes that it failed on
    Column(
        "wait", JSON(none_as_null=True), nullable=True
    ),  # why it waits, from the last cycle: position, reason, start, claim
    Column("submitted_at", Float, nullable=False),
    Column("queued_at", Float, nullable=True),  # since when it is in the queue; kept by a preempted one
    Column("admitted_at", Float, nullable=True),
    Column("started_at", Float, nullable=True),  # of the last attempt
    Column("first_started_at", Float, nullable=True),
    Column("stopped_at", Float, nullable=True),  # the program's end
    Column("ended_at", Float, nullable=True),  # the final state
    Column("leave_by", Float, nullable=True),  # told to go, and killed then
    Column("leave_for", String(32), nullable=False, default=""),
    Column("retain_until", Float, nullable=True),
    Column("due_at", Float, nullable=True),  # not to be looked at before
    Column("deleted_at", Float, nullable=True),
    Column(
        "dlc", JSON(none_as_null=True), nullable=True
    ),  # the request as the compatible door got it, given back as it came
    Column("origin", String(64), nullable=False, default=""),  # sweep:…, schedule:…, template:…
    Index("ix_workloads_state_id", "state", "id"),
    Index("ix_workloads_workspace_id_id", "workspace_id", "id"),
    Index("ix_workloads_user_id_id", "user_id", "id"),
    Index("ix_workloads_ended_at", "ended_at"),
    Index("ix_workloads_origin_id", "origin", "id"),
)

tasks = Table(
    "tasks",
    metadata,
    Column("workload_id", String(32), ForeignKey("workloads.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("name", String(80), primary_key=True),  # worker-0
    Column("role", String(63), nullable=False),
    Column("number", Integer, nullable=False),  # in its role
    Column("rank", Integer, nullable=False),  # in the workload
    Column("node", String(63), nullable=False),
    Column("devices", JSON, nullable=False),  # indices
    Column("state", String(16), nullable=False, default="pending"),
    Column("exit_code", Integer, nullable=True),
    Column("reason", String(32), nullable=False, default=""),  # one of spec/exit_reasons.py
    Column("message", Text, nullable=False, default=""),
    Column("address", String(64), nullable=False, default=""),
    Column("started_at", Float, nullable=True),
    Column("ended_at", Float, nullable=True),
    Column("log_bytes", BigInteger, nullable=False, default=0),
    Column("was_told", Boolean, nullable=False, default=False),  # it was told to end before it had
    Column("is_cleared", Boolean, nullable=False, default=False),  # no process of it is left, its log is here
    Index("ix_tasks_node_state", "node", "state"),
)

events = Table(
    "events",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("time", Float, nullable=False),
    Column("subject", String(16), nullable=False),  # workload, node, workspace, user
    Column("subject_id", String(64), nullable=False),
    Column("workspace_id", String(32), nullable=True),
    Column("code", String(48), nullable=False),
    Column("message", Text, nullable=False),
    Column("state", String(16), nullable=False, default=""),  # of the workload after it
    Column("actor", String(64), nullable=False, default=""),  # a user's name; empty: the platform
    Column("data", JSON(none_as_null=True), nullable=True),
    Index("ix_events_subject", "subject", "subject_id", "seq"),
    Index("ix_events_workspace_id_seq", "workspace_id", "seq"),
    sqlite_autoincrement=True,  # a number is never given twice, so that followers can go on from one
)

audit = Table(
    "audit",
    metadata,
    Column("seq", SERIAL, primary_key=True, autoincrement=True),
    Column("time", Float, nullable=False),
    Column("actor", String(64), nullable=False),
    Column("address", String(64), nullable=False, default=""),
    Column("action", String(64), nullable=False),
    Column("subject", String(128), nullable=False),
    Column("workspace_id", String(32), nullable=True),
    Column("outcome", String(16), nullable=False),  # done, denied
    Column("data", JSON(none_as_null=True), nullable=True),
    sqlite_autoincrement=True,
)

idempotency = Table(
    "idempotency",
    metadata,
    Column("user_id", String(32), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("digest", String(64), nullable=False),  # of the request: the same key with another body is refused
    Column("status", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("created_at", Float, nullable=False, index=True),
)

nonces = Table(  # of signed requests that were taken, until their time is over: none is taken twice
    "nonces",
    metadata,
    Column("digest", LargeBinary(32), primary_key=True),  # of the access key and its nonce
    Column("expires_at", Float, nullable=False, index=True),
    sqlite_with_rowid=False,
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("owner", String(64), nullable=False),
    Column("until", Float, nullable=False),
    Column("epoch", Integer, nullable=False),  # goes up with every owner: a late writer is found out by it
)

past_use = Table(
    "past_use",
    metadata,
    Column("workspace_id", String(32), primary_key=True),
    Column("user_id", String(32), primary_key=True),
    Column("amount", Float, nullable=False),  # shares of the cluster times seconds, decayed until `at`
    Column("at", Float, nullable=False),
)

settings = Table(
    "settings",
    metadata,
    Column("key", String(63), primary_key=True),
    Column("value", JSON, nullable=False),
)

dependencies = Table(  # jobs that a job waits for before it queues
    "dependencies",
    metadata,
    Column("workload_id", String(32), ForeignKey("workloads.id", ondelete="CASCADE"), primary_key=True),
    Column("needs_id", String(32), primary_key=True, index=True),
    Column("condition", String(16), nullable=False, default="succeeded"),  # or failed, ended
)

templates = Table(
    "templates",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(64), nullable=False),
    Column("scope", String(16), nullable=False),  # personal, workspace, all
    Column("user_id", String(32), ForeignKey("users.id"), nullable=False, index=True),  # who made it
    Column(
        "workspace_id", String(32), ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=True, index=True
    ),
    Column("description", Text, nullable=False, default=""),
    Column("body", JSON, nullable=False),  # keys of a job, as its document has them
    Column("created_at", Float, nullable=False),
    Column("version", Integer, nullable=False, default=1),
)

schedules = Table(  # jobs that are submitted by the clock
    "schedules",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(64), nullable=False),
    Column("workspace_id", String(32), ForeignKey("workspaces.id"), nullable=False, index=True),
    Column("user_id", String(32), ForeignKey("users.id"), nullable=False),
    Column("cron", String(120), nullable=False),
    Column("timezone", String(64), nullable=False, default="UTC"),
    Column("overlap", String(16), nullable=False, default="skip"),  # or allow, replace
    Column("spec", JSON, nullable=False),
    Column("is_active", Boolean, nullable=False, default=True),
    Column("next_at", Float, nullable=True, index=True),
    Column("last_at", Float, nullable=True),
    Column("last_job", String(32), nullable=False, default=""),
    Column("message", Text, nullable=False, default=""),  # why the last one was not submitted
    Column("created_at", Float, nullable=False),
    Column("version", Integer, nullable=False, default=1),
)

storages = Table(  # folders that tasks see; a data set of the compatible door is one too
    "storages",
    metadata,
    Column("id", String(32), primary_key=True),  # data…
    Column("name", String(64), nullable=False),
    Column(
        "workspace_id", String(32), ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=True, index=True
    ),  # null: all workspaces
    Column("kind", String(16), nullable=False),  # folder, nfs, …
    Column("source", Text, nullable=False),  # may hold {user}, {workspace}, {group}, {job}
    Column("target", Text, nullable=False),  # where tasks see it; the same words
    Column("read_only", Boolean, nullable=False, default=False),
    Column("is_default", Boolean, nullable=False, default=False),  # every task sees it, asked or not
    Column("options", JSON, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("version", Integer, nullable=False, default=1),
)

code_sources = Table(
    "code_sources",
    metadata,
    Column("id", String(32), primary_key=True),  # code-…
    Column("name", String(64), nullable=False),
    Column(
        "workspace_id",
        String(32),
        ForeignKey("workspaces.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    Column("url", Text, nullable=False),
    Column("branch", Text, nullable=False, default=""),
    Column("commit", String(64), nullable=False, default=""),
    Column("target", Text, nullable=False, default=""),
    Column("sealed", LargeBinary, nullable=True),  # the token for a private repository
    Column("created_at", Float, nullable=False),
    Column("version", Integer, nullable=False, default=1),
)

registries = Table(  # sign-ins for images
    "registries",
    metadata,
    Column("id", String(32), primary_key=True),
    Column(
        "workspace_id", String(32), ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=True, index=True
    ),  # null: all workspaces
    Column("host", String(255), nullable=False),
    Column("username", Text, nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("version", Integer, nullable=False, default=1),
)

secrets = Table(  # of users and workspaces, for jobs that name them
    "secrets",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(64), nullable=False),
    Column("place", String(48), nullable=False),  # "user …" or "workspace …": a name is there once
    Column("user_id", String(32), ForeignKey("users.id", ondelete="CASCADE"), nullable=False),  # who made it
    Column("workspace_id", String(32), ForeignKey("workspaces.id", ondelete="CASCADE"), nullable=True),
    Column("sealed", LargeBinary, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("changed_at", Float, nullable=False),
    Column("last_used_at", Float, nullable=True),
    Index("ix_secrets_place_name", "place", "name", unique=True),
)

samples = Table(  # what tasks and nodes used, rolled up
    "samples",
    metadata,
    Column("subject", String(120), primary_key=True),  # job….1/worker-0, or node:NAME
    Column("step", Integer, primary_key=True),  # seconds: 10, 60, 3600
    Column("time", Integer, primary_key=True),  # of its beginning
    Column("count", Integer, nullable=False),  # of what was averaged
    Column("readings", JSON, nullable=False),  # {metric: mean, or {device: mean}}
    Index("ix_samples_step_time", "step", "time"),
)

device_figures = Table(  # what the drivers of a task's devices said last; without a past
    "device_figures",
    metadata,
    Column("subject", String(120), primary_key=True),  # job….1/worker-0
    Column("time", Float, nullable=False),
    Column("figures", JSON, nullable=False),  # {device: {name: figure, "uuid": text}}
)

usage = Table(  # what a job has used on one day
    "usage",
    metadata,
    Column("workload_id", String(32), primary_key=True),
    Column("day", Integer, primary_key=True),  # since 1970, UTC
    Column("device_type", String(63), primary_key=True, default=""),
    Column("workspace_id", String(32), nullable=False),
    Column("user_id", String(32), nullable=False),
    Column("device_seconds", Float, nullable=False, default=0.0),
    Column("idle_device_seconds", Float, nullable=False, default=0.0),
    Column("cpu_seconds", Float, nullable=False, default=0.0),  # that it had, not that it used
    Column("memory_mib_seconds", Float, nullable=False, default=0.0),
    Column("cost", Float, nullable=False, default=0.0),
    Index("ix_usage_day", "day"),
    Index("ix_usage_workspace_id_day", "workspace_id", "day"),
)

budgets = Table(
    "budgets",
    metadata,
    Column("subject", String(16), primary_key=True),  # workspace, user
    Column("subject_id", String(32), primary_key=True),
    Column("amount", Float, nullable=False),  # a month
    Column("warn_at", JSON, nullable=False),  # shares of it: [0.5, 0.8]
    Column("action", String(16), nullable=False, default="warn"),  # or hold, stop
    Column("month", Integer, nullable=False, default=0),  # yyyymm that `warned` is of
    Column("warned", JSON, nullable=False),  # shares that were told
    Column("version", Integer, nullable=False, default=1),
)

pools = Table(  # of machines that are bought when the queue needs them
    "pools",
    metadata,
    Column("name", String(63), primary_key=True),
    Column("backend", String(16), nullable=False),
    Column("types", JSON, nullable=False),  # machine types, the first is preferred
    Column("zones", JSON, nullable=False),
    Column("is_spot", Boolean, nullable=False, default=False),
    Column("price_limit", Float, nullable=True),  # of one machine and hour
    Column("most", Integer, nullable=False),  # machines at once
    Column("least", Integer, nullable=False, default=0),  # kept even when idle
    Column("idle_seconds", Integer, nullable=False, default=600),
    Column("labels", JSON, nullable=False),
    Column("taints", JSON, nullable=False),
    Column("options", JSON, nullable=False),  # of the backend: image, disk, …
    Column("shapes", JSON, nullable=False),  # of each type, as the provider or a node of that type told it
    Column("currency", String(8), nullable=False, default=""),
    Column("message", Text, nullable=False, default=""),  # why it could not buy last
    Column("reason", String(48), nullable=False, default=""),  # the code of that, and what the code speaks of
    Column("facts", JSON(none_as_null=True), nullable=True),
    Column("failures", Integer, nullable=False, default=0),  # in a row
    Column("retry_at", Float, nullable=True),  # nothing is bought until then
    Column("is_active", Boolean, nullable=False, default=True),  # no: all its machines go, then it
    Column("created_at", Float, nullable=False),
    Column("version", Integer, nullable=False, default=1),
)

pool_machines = Table(
    "pool_machines",
    metadata,
    Column("name", String(63), primary_key=True),  # of the machine, and of the node
    Column("pool", String(63), nullable=False, index=True),
    Column("backend", String(16), nullable=False),
    Column("machine_id", String(64), nullable=False, default=""),  # the provider's
    Column(
        "state", String(16), nullable=False, index=True
    ),  # wanted, joining, joined, draining, releasing, released
    Column("machine_type", String(63), nullable=False, default=""),
    Column("zone", String(63), nullable=False, default=""),
    Column("is_spot", Boolean, nullable=False, default=False),
    Column("is_whole", Boolean, nullable=False, default=False),  # all of its order, or none
    Column("price", Float, nullable=False, default=0.0),  # of an hour
    Column(
        "rates", JSON, nullable=False
    ),  # what it was after the purchase, where it changed: [[since, price]]
    Column("currency", String(8), nullable=False, default=""),
    Column("cost", Float, nullable=False, default=0.0),  # in all, once it is released
    Column("costed_at", Float, nullable=True),  # since when it costs
    Column("joined_at", Float, nullable=True),  # when its node was ready first
    Column("idle_since", Float, nullable=True),
    Column("message", Text, nullable=False, default=""),
    Column("for_jobs", JSON, nullable=False),  # some of those that waited when it was decided on
    Column("wanted_at", Float, nullable=False),
    Column("worked_at", Float, nullable=True),  # when the first job had a place there
    Column("released_at", Float, nullable=True),  # kept for the bill
    Column("version", Integer, nullable=False, default=1),
)

machine_days = Table(  # what a machine of a pool has cost on one day
    "machine_days",
    metadata,
    Column("machine", String(63), primary_key=True),
    Column("day", Integer, primary_key=True),  # since 1970, UTC
    Column("pool", String(63), nullable=False),
    Column("currency", String(8), nullable=False, default=""),
    Column("seconds", Float, nullable=False, default=0.0),
    Column("used_cost", Float, nullable=False, default=0.0),  # while a job had a place there
    Column("idle_cost", Float, nullable=False, default=0.0),
    Column("starting_cost", Float, nullable=False, default=0.0),  # before its node was ready
    Index("ix_machine_days_day", "day"),
)
