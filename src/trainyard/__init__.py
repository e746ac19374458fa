"""Put AI training onto machines: `make_job`, `job.upload`, `job.run`.

Public names only, each imported when it is first used: `import trainyard` prints nothing, installs no hooks and
costs next to nothing.
"""

from __future__ import annotations

__version__ = "0.1.0"
