"""The main job on this computer, with no account and no GPU: two tasks train one model together.

    python examples/demo.py

Makes the job, uploads the code, trains, downloads the result, draws the loss, and releases everything.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import trainyard

HERE = Path(__file__).parent
OUTPUT = Path("demo-output")
BLOCKS = "▁▂▃▄▅▆▇█"


def main() -> None:
    job = trainyard.make_job(name="demo", num_tasks=2)
    try:
        job.upload(HERE / "classifier")
        job.run("cd classifier")
        trainyard_ls()
        python = sys.executable
        job.tasks[1].run(f"'{python}' train.py", non_blocking=True)
        job.tasks[0].run(f"'{python}' train.py", show_realtime=True)
        job.tasks[1].join()
        OUTPUT.mkdir(exist_ok=True)
        job.tasks[0].download("classifier/result.json", OUTPUT / "result.json")
    finally:
        job.kill()
    result = json.loads((OUTPUT / "result.json").read_text())
    draw(result["losses"], OUTPUT / "loss.svg")
    print(
        f"\nloss      {sparkline(result['losses'])}  {result['losses'][0]:.3f} to {result['losses'][-1]:.3f}"
    )
    print(f"accuracy  {result['accuracy']:.1%} on {result['tasks']} tasks")
    print(f"picture   {OUTPUT / 'loss.svg'}")


def trainyard_ls() -> None:
    """What `trainyard ls` shows while the job is there."""
    print(flush=True)
    subprocess.run([Path(sys.executable).with_name("trainyard"), "ls"], check=True)
    print(flush=True)


def sparkline(values: list[float], width: int = 40) -> str:
    """A curve in one line of text."""
    picked = [values[int(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    low, high = min(picked), max(picked)
    return "".join(BLOCKS[round((value - low) / (high - low) * (len(BLOCKS) - 1))] for value in picked)


def draw(values: list[float], target: Path) -> None:
    """A loss curve as a picture that any browser shows."""
    width, height, left, top = 640, 320, 60, 30
    high = max(values)

    def x(i: int) -> float:
        return left + i / (len(values) - 1) * (width - left - 20)

    def y(value: float) -> float:
        return top + (1 - value / high) * (height - top - 40)

    points = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(values))
    marks = "".join(
        f'<line x1="{left}" x2="{width - 20}" y1="{y(high * k / 4):.1f}" y2="{y(high * k / 4):.1f}" stroke="#ddd"/>'
        f'<text x="{left - 8}" y="{y(high * k / 4) + 4:.1f}" text-anchor="end">{high * k / 4:.2f}</text>'
        for k in range(5)
    )
    target.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12" fill="#444"><rect width="100%" height="100%" fill="white"/>{marks}'
        f'<polyline points="{points}" fill="none" stroke="#1f6feb" stroke-width="2"/>'
        f'<text x="{width / 2}" y="18" text-anchor="middle" font-size="14">Loss, two tasks training together</text>'
        f'<text x="{width / 2}" y="{height - 10}" text-anchor="middle">step (1 to {len(values)})</text></svg>\n'
    )


if __name__ == "__main__":
    main()
