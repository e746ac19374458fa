"""How tasks end, by the reasons of spec/exit_reasons.py."""

from __future__ import annotations

from collections.abc import Mapping

from trainyard.messages.text import Text

TEXTS: Mapping[str, Text] = {
    "exit.exited": Text("the program ended by itself", "程序自行结束"),
    "exit.signalled": Text("it was ended by a signal", "被信号结束"),
    "exit.told": Text("it was asked to end", "按要求结束"),
    "exit.fenced": Text("its node heard no server for too long, and ended it", "节点长时间联系不上服务器，已结束该任务"),
    "exit.out_of_memory": Text("it used more memory than its own", "内存用量超过申请量"),
    "exit.too_many_processes": Text("it wanted more processes and threads than it may have", "进程和线程数超过上限"),
    "exit.disk_limit": Text("it used more of the node's disk than it asked for", "节点磁盘用量超过申请量"),
    "exit.disk_full": Text("the node's disk was full, and no other task used more of it", "节点磁盘已满，且该任务占用最多"),
    "exit.not_started": Text("it could not be started", "无法启动"),
    "exit.no_container": Text("its container could not be started", "容器无法启动"),
    "exit.no_shell": Text("its image has no shell", "镜像中没有 shell"),
    "exit.no_environment": Text("its files, code or packages could not be prepared", "文件、代码或依赖包准备失败"),
    "exit.no_port": Text("the ports for its ssh were taken on the node", "节点上供 ssh 使用的端口均被占用"),
    "exit.no_peers": Text("other tasks of the job were not reached in time", "未能在限时内连通本作业的其他任务"),
    "exit.no_ssh": Text("its ssh could not be started", "ssh 服务无法启动"),
    "exit.ended_before_start": Text("it was ended before it began", "启动前已被结束"),
    "exit.container_lost": Text("its container was lost while it ran", "容器在运行中丢失"),
    "exit.supervisor_lost": Text("its supervisor on the node was killed, and so was it", "节点上的监管进程被杀，任务随之结束"),
    "exit.unseen": Text("nobody saw how it ended", "未能得知其结束情况"),
}  # fmt: skip
