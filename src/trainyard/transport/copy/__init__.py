"""Files and folders to and from machines, over any `Transport`: only what changed travels, and what was cut resumes."""

from trainyard.transport.copy.api import CopyOptions, CopyReport, Peer, Peers, Progress
from trainyard.transport.copy.download import download
from trainyard.transport.copy.upload import upload

__all__ = ["CopyOptions", "CopyReport", "Peer", "Peers", "Progress", "download", "upload"]
