"""What happens to jobs: the reasons of their states, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.messages.text import Text

TEXTS: Mapping[str, Text] = {
    # -- states
    "state.held": Text("It is held: somebody has to let it go on.", "作业已挂起，需要有人恢复或批准。"),
    "state.admitted": Text("It has its places and is about to start.", "已分配资源，即将启动。"),
    "state.starting": Text("Its tasks are being started.", "正在启动。"),
    "state.running": Text("It runs.", "正在运行。"),
    "state.retained": Text("Its program has ended; its places are kept for a look.", "程序已结束，资源保留以便查看。"),
    "state.finishing": Text("What is left of it is being ended.", "正在结束。"),
    "state.succeeded": Text("It has succeeded.", "已成功。"),
    "state.failed": Text("It has failed.", "已失败。"),
    "state.cancelled": Text("It was cancelled.", "已取消。"),
    "state.next": Text("It is next; the scheduler is about to look at it.", "即将轮到它。"),
    "state.starts_now": Text("It would start at once.", "可立即启动。"),
    "waits_for_jobs": Text("It is held until other jobs have ended.", "等待其他作业结束。"),
    "needs_approval": Text(
        "It is held: somebody has to let it go on.", "作业已挂起，需要有人恢复或批准。",
        "An administrator of the workspace has to approve it.", "需要工作空间管理员批准。",
    ),
    "avoids_nodes": Text("It avoids {nodes}, which failed it before.", "已避开曾使其失败的节点 {nodes}。"),
    "no_node_runs_images": Text(
        "It has an image, and none of its nodes runs containers: they have no podman or docker that answers.",
        "作业指定了镜像，但没有节点能运行容器：没有可用的 podman 或 docker。",
        "Ask an administrator to install podman on a node, or to have one ignore images: "
        "`trainyard nodes set NAME --images ignore`.",
        "请管理员在节点上安装 podman，或用 `trainyard nodes set NAME --images ignore` 让节点忽略镜像。",
    ),
    "another_job": Text("another job", "其他作业"),
    "another_workspace": Text("another workspace", "其他工作空间"),
    # -- why a state was reached
    "over_budget": Text(
        "Held: the month's budget is used up. It starts again when the budget is raised and somebody resumes it.",
        "已挂起：本月预算已用完。提高预算并恢复该作业后才会重新启动。",
    ),
    "paused": Text("Paused: out of the queue until resumed.", "已暂停：恢复前不参与排队。"),
    "paused_while_running": Text("Paused: it starts again when resumed.", "已暂停：恢复后重新启动。"),
    "queued": Text("In the queue.", "正在排队。"),
    "stopped": Text("Stopped.", "已停止。"),
    "stopped_before_start": Text("Stopped before it started.", "启动前已停止。"),
    "starting": Text("Start {attempt} is under way.", "正在进行第 {attempt} 次启动。"),
    "running": Text("It runs.", "正在运行。"),
    "all_tasks_run": Text("All tasks run.", "所有任务均在运行。"),
    "succeeded": Text("Ended with 0.", "正常结束，退出码 0。"),
    "ended_with": Text("Ended with {code}.", "已结束，退出码 {code}。"),
    "restarted": Text("It ended, and is to be run again.", "已结束，将再次运行。"),
    "time_limit": Text("Stopped after its time limit of {seconds} s.", "已达到 {seconds} 秒的运行时限，停止运行。"),
    "task_lost": Text(
        "Task {task} was lost with its node {node}; it goes back to the queue.",
        "任务 {task} 随节点 {node} 丢失，作业重新排队。",
    ),
    "node_silent": Text(
        "Node {node} does not answer; the job is found again when it does.",
        "节点 {node} 没有响应；节点恢复后会重新找到该作业。",
    ),
    # -- what people did
    "submitted": Text("{actor} submitted it.", "{actor} 提交了该作业。"),
    "stop_wanted": Text("{actor} wants it stopped.", "{actor} 要求停止该作业。"),
    "pause_wanted": Text("{actor} wants it paused.", "{actor} 要求暂停该作业。"),
    "resume_wanted": Text("{actor} wants it resumed.", "{actor} 要求恢复该作业。"),
    "priority_changed": Text("{actor} set its priority to {priority}.", "{actor} 将优先级设为 {priority}。"),
    "approved": Text("{actor} approved it.", "{actor} 批准了该作业。"),
    # -- how it ended
    "failed": Text("Task {task} ended with {code}{why}.", "任务 {task} 结束，退出码 {code}{why}。"),
    "retried": Text(
        "Task {task} ended with {code}{why}; retry {retry} of {retries}.",
        "任务 {task} 结束，退出码 {code}{why}；第 {retry} 次重试，共 {retries} 次。",
    ),
    "port_taken": Text(
        "Task {task} ended with {code}{why}; it is tried again.", "任务 {task} 结束，退出码 {code}{why}；将重试。"
    ),
    "cleared": Text("No process of it is left; its places are free.", "所有进程均已结束，资源已释放。"),
}  # fmt: skip
