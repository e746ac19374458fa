"""Train a small classifier on every task of a job at once: plain Python, plain sockets, no GPU.

Each task holds its own share of the data. After every step the tasks add up their gradients on task 0, which listens at
MASTER_ADDR:MASTER_PORT, so all of them make the same step. The variables come from the job; alone, it trains alone.
"""

from __future__ import annotations

import json
import math
import os
import random
import socket
import struct
import time

FEATURES = 8
SAMPLES = 600
STEPS = 120
RATE = 0.8


class Ring:
    """Sums lists of numbers over all tasks, through task 0."""

    def __init__(self, rank: int, size: int, address: str, port: int) -> None:
        self.rank = rank
        self.links: list[socket.socket] = []
        if size == 1:
            return
        if rank == 0:
            with socket.create_server((address, port), backlog=size) as server:
                self.links = [server.accept()[0] for _ in range(size - 1)]
        else:
            self.links = [dial(address, port)]

    def sum(self, numbers: list[float]) -> list[float]:
        layout = struct.Struct(f"!{len(numbers)}d")
        if self.rank:
            self.links[0].sendall(layout.pack(*numbers))
            return list(layout.unpack(receive(self.links[0], layout.size)))
        for link in self.links:
            theirs = layout.unpack(receive(link, layout.size))
            numbers = [mine + other for mine, other in zip(numbers, theirs, strict=True)]
        for link in self.links:
            link.sendall(layout.pack(*numbers))
        return numbers


def dial(address: str, port: int) -> socket.socket:
    """Task 0 may be a moment later than we are."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection((address, port), timeout=30)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def receive(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = link.recv(count - len(data))
        if not piece:
            raise ConnectionError("another task has gone")
        data += piece
    return data


def make_data(rank: int) -> list[tuple[list[float], int]]:
    """Points on two sides of a plane, with a little noise; every task has other ones."""
    chance = random.Random(rank)
    plane = random.Random("the same plane for all")
    normal = [plane.uniform(-1, 1) for _ in range(FEATURES)]
    data = []
    for _ in range(SAMPLES):
        point = [chance.gauss(0, 1) for _ in range(FEATURES)]
        side = sum(a * b for a, b in zip(normal, point, strict=True)) + chance.gauss(0, 0.3)
        data.append((point, int(side > 0)))
    return data


def main() -> None:
    rank, size = int(os.environ.get("NODE_RANK", "0")), int(os.environ.get("NNODES", "1"))
    ring = Ring(
        rank, size, os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
    )
    data = make_data(rank)
    weights = [0.0] * FEATURES
    losses = []
    for step in range(1, STEPS + 1):
        gradient, loss, right = [0.0] * FEATURES, 0.0, 0
        for point, label in data:
            score = sum(a * b for a, b in zip(weights, point, strict=True))
            chance = 1 / (1 + math.exp(-score))
            loss -= math.log(max(1e-9, chance if label else 1 - chance))
            right += (chance > 0.5) == bool(label)
            for i in range(FEATURES):
                gradient[i] += (chance - label) * point[i]
        *gradient, loss, right = ring.sum([*gradient, loss, right])
        count = SAMPLES * size
        weights = [w - RATE * g / count for w, g in zip(weights, gradient, strict=True)]
        losses.append(loss / count)
        if rank == 0 and (step == 1 or step % 20 == 0):
            print(f"step {step:3d}/{STEPS}  loss {losses[-1]:.4f}  accuracy {right / count:.3f}", flush=True)
    if rank == 0:
        with open("result.json", "w") as file:
            json.dump({"weights": weights, "losses": losses, "accuracy": right / count, "tasks": size}, file)


if __name__ == "__main__":
    main()
