"""The thread sanitizer's tests: for `make test-threads` alone, which builds the kernels for it."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("TSAN_EXTENSIONS") else ["test_*.py"]
